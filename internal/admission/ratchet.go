package admission

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// ratchet sorts the errors of the rules. An error is introduced by an update if a
// field that its rule reads has changed, and pre-existing otherwise. Introduced
// errors deny the update. Pre-existing errors cause warnings, but only if the spec
// has changed: somebody who labels the object can do nothing about them.
//
// A rule says what is wrong with an object. What has changed is decided here.
type ratchet struct {
	introduced, existing field.ErrorList
	notes                []Warning         // of values that have no effect
	sources              map[string]string // audit annotations

	before, after any // the specs
}

// rule takes the errors of a rule, and whether a field that it reads has changed.
func (r *ratchet) rule(name string, changed bool, errs field.ErrorList) {
	if changed {
		r.deny(name, errs...)
	} else {
		r.existing = append(r.existing, errs.WithOrigin(name)...)
	}
}

// deny takes the errors of a rule about a change itself, such as that of a frozen
// pair: all of them are introduced.
func (r *ratchet) deny(name string, errs ...*field.Error) {
	list := field.ErrorList(errs).WithOrigin(name)
	if r.introduced == nil { // as it is for most denials
		r.introduced = list
		return
	}
	r.introduced = append(r.introduced, list...)
}

// specChanged compares the whole specs, with the fields that no view has.
func (r *ratchet) specChanged() bool { return !reflect.DeepEqual(r.before, r.after) }

// shape reports a node that has another JSON type than wanted says ("an
// object", "a string"), unless it was stored with that value.
func shape[T any](was, now node[T], wanted string, path *field.Path, r *ratchet) {
	if now.raw != "" && now.raw != was.raw {
		r.deny("shape", field.TypeInvalid(path, now.shown(), "must be "+wanted+"; correct the manifest"))
	}
}

// imageChanged compares images after trimming.
func imageChanged(was, now host) bool {
	return now.image() != was.image() || now.Image.raw != was.Image.raw
}

// formatChanged compares formats without any change, since a format is never
// repaired.
func formatChanged(was, now host) bool { return now.Format != was.Format }

// hostChanged reports whether an image or its format has changed.
func hostChanged(was, now host) bool { return imageChanged(was, now) || formatChanged(was, now) }

// selectorChanged reports whether two selectors differ in meaning. Typed clients
// drop empty fields, so an empty field is the same as an absent one. An empty
// selector is not the same as an absent one: it selects everything.
func selectorChanged(was, now node[any]) bool {
	return !reflect.DeepEqual(withoutEmpty(was.Value, "matchLabels", "matchExpressions"), withoutEmpty(now.Value, "matchLabels", "matchExpressions"))
}

// withoutEmpty returns an object without those of the given fields that are
// null or empty. The items of a list in such a field lose empty values.
func withoutEmpty(value any, fields ...string) any {
	object, ok := value.(map[string]any)
	if !ok {
		return value
	}
	kept := make(map[string]any, len(object))
	for name, v := range object {
		list, isList := v.([]any)
		switch {
		case !slices.Contains(fields, name):
			kept[name] = v
		case empty(v):
		case isList:
			items := make([]any, len(list))
			for i, item := range list {
				items[i] = withoutEmpty(item, "values")
			}
			kept[name] = items
		default:
			kept[name] = v
		}
	}
	return kept
}

// empty reports whether a field means the same as an absent one.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// trimImage returns the edit that removes surrounding whitespace from an image
// at the given path, or the whole field if it has nothing else. A stored image that
// has not changed is left alone: a label edit never changes a spec.
func trimImage(was, now string, path ...string) []edit {
	trimmed := resolve.TrimImage(now)
	switch {
	case now == was || now == trimmed:
		return nil
	case trimmed == "":
		return []edit{{path: path}}
	default:
		return []edit{{path: path, value: &trimmed}}
	}
}
