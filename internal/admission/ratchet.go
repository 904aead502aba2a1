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
// A rule says what is wrong with the new object. What has changed, and what follows
// from that, is decided here. Only a rule about a change itself, such as that of a
// frozen pair, gets both objects.
type ratchet struct {
	introduced, existing field.ErrorList
	warnings             []Warning         // for the client
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

// ruleOnChange is like rule, without warnings for pre-existing errors. The rules of
// operations have none.
func (r *ratchet) ruleOnChange(name string, changed bool, errs field.ErrorList) {
	if changed {
		r.deny(name, errs...)
	}
}

// note takes a warning of a rule that denies nothing, and whether a field that it
// reads has changed. An empty message is no warning.
func (r *ratchet) note(name string, changed bool, message string, path *field.Path) {
	if changed && message != "" {
		r.warnings = append(r.warnings, Warning{name, path.String(), message})
	}
}

// shape reports JSON of another type than wanted says ("an object", "a string"),
// unless it was stored with that value. It takes the raw JSON of two nodes, which is
// empty for the right type.
func (r *ratchet) shape(was, now string, wanted string, path *field.Path) {
	if now != "" && now != was {
		r.deny("shape", field.TypeInvalid(path, shownRaw(now), "must be "+wanted+"; correct the manifest"))
	}
}

// deny takes the errors of a rule about a change itself: all of them are introduced.
func (r *ratchet) deny(name string, errs ...*field.Error) {
	list := field.ErrorList(errs).WithOrigin(name)
	if r.introduced == nil { // as it is for most denials
		r.introduced = list
		return
	}
	r.introduced = append(r.introduced, list...)
}

// warnOfExisting makes warnings of the pre-existing errors. It runs after the rules.
func (r *ratchet) warnOfExisting() {
	if len(r.existing) == 0 || !r.specChanged() {
		return
	}
	warnings := make([]Warning, 0, len(r.existing)+len(r.warnings))
	for _, err := range r.existing {
		warnings = append(warnings, Warning{err.Origin, err.Field, "stored before and still wrong: " + err.ErrorBody()})
	}
	r.warnings = append(warnings, r.warnings...)
}

// specChanged compares the whole specs, with the fields that no view has.
func (r *ratchet) specChanged() bool { return !reflect.DeepEqual(r.before, r.after) }

// imageChanged compares images after trimming.
func imageChanged(was, now host) bool {
	return now.image() != was.image() || now.Image.raw != was.Image.raw
}

// formatChanged compares formats without any change, since a format is never
// repaired.
func formatChanged(was, now host) bool { return now.Format != was.Format }

// hostChanged reports whether an image or its format has changed.
func hostChanged(was, now host) bool { return imageChanged(was, now) || formatChanged(was, now) }

// fleetChanged reports whether the kind or the selector of an operation has changed.
func fleetChanged(was, now operationSpec) bool {
	return now.OperationKind.Value != was.OperationKind.Value || selectorChanged(was.MachineSelector, now.MachineSelector)
}

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

// targetsByMachine finds targets by their Machine, in any order of the list. If a
// list holds a Machine twice, as older CRDs allow, the entries are taken in order.
type targetsByMachine struct {
	targets []node[target]
	first   map[string]int // index of the next target of a Machine plus 1; 0 if none is left
	after   []int          // for each target, the same for the one after it
}

func byMachine(targets []node[target]) targetsByMachine {
	m := targetsByMachine{targets, make(map[string]int, len(targets)), make([]int, len(targets))}
	for i := len(targets) - 1; i >= 0; i-- {
		machine := targets[i].Value.MachineRef.Value
		m.after[i], m.first[machine] = m.first[machine], i+1
	}
	return m
}

// next takes the next target of a Machine. If none is left, again reports whether
// one was taken, or asked for, before.
func (m targetsByMachine) next(machine string) (t node[target], found, again bool) {
	i, again := m.first[machine]
	if i == 0 {
		m.first[machine] = 0
		return node[target]{}, false, again
	}
	m.first[machine] = m.after[i-1]
	return m.targets[i-1], true, false
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
