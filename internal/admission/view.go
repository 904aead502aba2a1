package admission

import (
	"bytes"
	stdjson "encoding/json"

	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// node is one value of a view: a view holds just the fields of an object that
// rules read, so that a value elsewhere which Go would refuse blocks nobody.
// Keys match by exact case and integers stay exact, as on the API server.
//
// Decoding a node never fails. JSON of another type leaves V zero and is kept
// in wrong, for the rule named shape to report; null is the same as absent.
type node[T any] struct {
	V     T
	wrong string
}

// UnmarshalJSON implements the decoding described at node.
func (n *node[T]) UnmarshalJSON(data []byte) error {
	*n = node[T]{}
	// All that V contains are nodes, which take anything. So an error can only
	// mean that this value itself is of another type.
	if err := json.Unmarshal(data, &n.V); err != nil {
		*n = node[T]{wrong: string(bytes.TrimSpace(data))}
	}
	return nil
}

// shown is what messages show of a node, cut where it is long.
func (n node[T]) shown() any {
	if s, ok := any(n.V).(string); ok && n.wrong == "" {
		return resolve.Excerpt(s)
	}
	if text := resolve.Excerpt(n.wrong); text != n.wrong {
		return text
	}
	return stdjson.RawMessage(n.wrong) // as it was written, without further quotes
}

// shape reports a node that has another JSON type than wanted says ("an
// object", "a string"), unless it was stored so.
func shape[T any](was, now node[T], wanted string, path *field.Path) field.ErrorList {
	if now.wrong == "" || now.wrong == was.wrong {
		return nil
	}
	return field.ErrorList{field.TypeInvalid(path, now.shown(), "must be "+wanted+"; correct the manifest")}.WithOrigin("shape")
}
