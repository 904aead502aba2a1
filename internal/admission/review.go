package admission

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// guard reads reviews of one resource, or of one of its subresources.
type guard interface {
	read(req admission.Request) (review, error)
}

// review holds the views of the two objects of a review.
type review interface {
	// edits returns the changes that normalize the object.
	edits() []edit
	// judge runs the rules. The error says that the review lacks an object.
	judge() (*ratchet, error)
}

// guardOf is the guard of a resource whose rules read a view of type T. It
// replaces the typed validators and defaulters of controller-runtime, which decode
// whole objects: they refuse an object for a value that no rule reads, and their
// patches touch fields that nobody edited.
type guardOf[T any] struct {
	// trim returns the edits. It is nil if nothing is edited.
	trim func(was, now *T) []edit
	// rules judge the object. On a create, was is empty.
	rules func(r *ratchet, was, now *T)
	// needsStored refuses an update without the stored object. The rules would
	// otherwise take it for a create.
	needsStored bool
}

// reviewOf is a review of objects with a view of type T.
type reviewOf[T any] struct {
	*guardOf[T]
	was, now *T
	kind     string
	update   bool
	stored   bool // the review has the stored object of an update
	ratchet
}

func (g *guardOf[T]) read(req admission.Request) (review, error) {
	if absent(req.Object.Raw) {
		return nil, fmt.Errorf("the review of %s %s has no object", req.Operation, req.Kind.Kind)
	}
	r := &reviewOf[T]{guardOf: g, kind: req.Kind.Kind, update: req.Operation == admissionv1.Update, was: new(T)}
	var err error
	if r.now, r.after, err = read[T](req.Object.Raw); err != nil {
		return nil, fmt.Errorf("the object of the review cannot be read: %w", err)
	}
	if r.stored = r.update && !absent(req.OldObject.Raw); r.stored {
		if r.was, r.before, err = read[T](req.OldObject.Raw); err != nil {
			return nil, fmt.Errorf("the stored object of the review cannot be read: %w", err)
		}
	}
	return r, nil
}

func (r *reviewOf[T]) edits() []edit {
	if r.trim == nil {
		return nil
	}
	return r.trim(r.was, r.now)
}

func (r *reviewOf[T]) judge() (*ratchet, error) {
	if r.needsStored && r.update && !r.stored {
		return nil, fmt.Errorf("an update of %s cannot be judged without the stored object", r.kind)
	}
	r.rules(&r.ratchet, r.was, r.now)
	r.warnOfExisting()
	return &r.ratchet, nil
}

func absent(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// node is one value of a view. A view holds only the fields of an object that
// rules read: a value elsewhere that Go would refuse blocks no request. Keys match
// by exact case and integers stay exact, as on the API server.
//
// Reading a node never fails. JSON of another type leaves Value zero and is kept in
// raw, for the rule named shape to report. null is the same as an absent field.
type node[T any] struct {
	Value T
	raw   string
}

// read decodes an object and returns the view of it, and its spec. The object is
// decoded once, and its values are picked from the result. No rule reads metadata,
// which may be most of an object: it is skipped.
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

// pick sets a value from decoded JSON, and reports whether it has that type. All
// fields of a view are nodes.
func pick(into reflect.Value, value any) bool {
	if into.Kind() == reflect.Struct {
		fields, ok := value.(map[string]any)
		if !ok {
			return false
		}
		for i, key := range keysOf(into.Type()) {
			if v, found := fields[key]; found {
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

// keysOf returns the JSON keys of the fields of a type. They are cached, since an
// object may have thousands of values of one type.
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
	if into, ok := any(&n.Value).(*string); ok { // most are, and need no reflection
		if text, ok := value.(string); ok {
			*into = text
			return
		}
	}
	if value == nil || pick(reflect.ValueOf(&n.Value).Elem(), value) {
		return
	}
	text, err := stdjson.Marshal(value)
	if err != nil { // decoded JSON can be encoded
		text = []byte(err.Error())
	}
	*n = node[T]{raw: string(text)}
}

// shown returns the value of a node for a message. A long one is cut.
func (n node[T]) shown() any {
	if s, ok := any(n.Value).(string); ok && n.raw == "" {
		return resolve.Excerpt(s)
	}
	return shownRaw(n.raw)
}

// shownRaw returns JSON for a message, as it was written and without further quotes.
func shownRaw(raw string) any {
	if text := resolve.Excerpt(raw); text != raw {
		return text
	}
	return stdjson.RawMessage(raw)
}
