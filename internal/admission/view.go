package admission

import (
	stdjson "encoding/json"
	"errors"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// node is one value of a view: a view holds just the fields of an object that
// rules read, so that a value elsewhere which Go would refuse blocks nobody.
// Keys match by exact case and integers stay exact, as on the API server.
//
// Reading a node never fails. JSON of another type leaves V zero and is kept in
// wrong, for the rule named shape to report; null is the same as absent.
type node[T any] struct {
	V     T
	wrong string
}

// read decodes an object and takes the view of it, and returns its spec, too. The
// object is decoded once, however deep the view: its values are picked from the
// result. No rule reads metadata, which may be most of an object: it is passed over.
func read[T any](raw []byte) (view *T, spec any, err error) {
	var object *struct {
		Spec   any `json:"spec"`
		Status any `json:"status"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, nil, err
	}
	if object == nil {
		return nil, nil, errors.New("it is null")
	}
	view = new(T)
	pick(reflect.ValueOf(view).Elem(), map[string]any{"spec": object.Spec, "status": object.Status})
	return view, object.Spec, nil
}

// pick sets a value from decoded JSON, and tells whether it has that type. All
// that a view consists of are nodes.
func pick(into reflect.Value, value any) bool {
	if into.Kind() == reflect.Struct {
		fields, ok := value.(map[string]any)
		if !ok {
			return false
		}
		for i, key := range keysOf(into.Type()) {
			if v, there := fields[key]; there {
				into.Field(i).Addr().Interface().(picker).pick(v)
			}
		}
		return true
	}
	if into.Kind() == reflect.Slice {
		items, ok := value.([]any)
		into.Set(reflect.MakeSlice(into.Type(), len(items), len(items)))
		for i, v := range items {
			into.Index(i).Addr().Interface().(picker).pick(v)
		}
		return ok
	}
	v := reflect.ValueOf(value)
	if !v.Type().AssignableTo(into.Type()) {
		return false
	}
	into.Set(v)
	return true
}

// keysOf are the JSON keys of the fields of a type. They are kept, for there may
// be thousands of one type in an object.
func keysOf(t reflect.Type) []string {
	if known, ok := keys.Load(t); ok {
		return known.([]string)
	}
	var all []string
	for field := range t.Fields() {
		all = append(all, field.Tag.Get("json"))
	}
	keys.Store(t, all)
	return all
}

var keys sync.Map // by reflect.Type

type picker interface{ pick(value any) }

func (n *node[T]) pick(value any) {
	if into, ok := any(&n.V).(*string); ok { // most are, and need no reflection
		if text, ok := value.(string); ok {
			*into = text
			return
		}
	}
	if value == nil || pick(reflect.ValueOf(&n.V).Elem(), value) {
		return
	}
	text, err := stdjson.Marshal(value)
	if err != nil { // what was decoded from JSON can be encoded
		text = []byte(err.Error())
	}
	*n = node[T]{wrong: string(text)}
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
