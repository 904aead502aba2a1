package admission

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// operationStatusEdits trims input.hostImage of every target in which it differs
// from the stored target of that Machine.
func operationStatusEdits(was, now *operation) []edit {
	stored := byMachine(was.Status.Value.Targets.Value)
	var edits []edit
	for i, t := range now.Status.Value.Targets.Value {
		before, _, _ := stored.next(t.Value.MachineRef.Value)
		edits = append(edits, trimImage(before.Value.host().Image.Value, t.Value.host().Image.Value,
			"status", "targets", strconv.Itoa(i), "input", "hostImage")...)
	}
	return edits
}

// validateOperationStatus keeps what is frozen, and judges new values.
func validateOperationStatus(was, now *operation, r *ratchet) {
	path := field.NewPath("status")
	shape(was.Status, now.Status, "an object", path, r)
	finalPhase(was, now, path.Child("phase"), r)
	path = path.Child("targets")
	shape(was.Status.Value.Targets, now.Status.Value.Targets, "a list", path, r)

	// Walk the new targets for new values, and the stored ones for missing ones.
	before, after := was.Status.Value.Targets.Value, now.Status.Value.Targets.Value
	stored, taken := byMachine(before), was.Status.Value.frozen()
	for i, t := range after {
		machine := t.Value.MachineRef.Value
		old, known, again := stored.next(machine)
		if known && t == old { // as most are
			continue
		}
		at := path.Key(resolve.Excerpt(machine))
		if taken && !known && !again {
			r.deny("frozenTargets", field.Forbidden(at,
				"may not be added because the targets of this operation are frozen (condition Frozen is True); create a new MachineOperation for this Machine"))
		}
		if again {
			err := field.Duplicate(path.Index(i).Child("machineRef"), resolve.Excerpt(machine))
			err.Detail = "may be the target of one entry only; merge the entries"
			r.deny("uniqueTarget", err)
		}
		shape(old, t, "an object", path.Index(i), r)
		shape(old.Value.MachineRef, t.Value.MachineRef, "a string", path.Index(i).Child("machineRef"), r)
		shape(old.Value.Input, t.Value.Input, "an object", at.Child("input"), r)
		validateInput(old.Value.host(), t.Value.host(), at.Child("input"), r)
	}
	for _, t := range before {
		machine := t.Value.MachineRef.Value
		left, _, _ := stored.next(machine)
		if left.Value.host().image() != "" || left.Value.frozen() {
			r.deny("frozenPair", field.Required(path.Key(resolve.Excerpt(machine)),
				"may not be removed because its image and format are frozen; a client that rewrites the list must keep every target under its machineRef"))
		}
	}
}

// finalPhase keeps the final phase of a HostReplace with a frozen pair. Every other
// phase is refused, not only one that would start the replacement again: readers
// rely on a final phase.
func finalPhase(was, now *operation, path *field.Path, r *ratchet) {
	before := was.Status.Value.Phase
	if now.Status.Value.Phase == before || !v1alpha3.OperationPhase(before.Value).Finished() ||
		was.Spec.Value.OperationKind.Value != string(v1alpha3.HostReplace) ||
		!slices.ContainsFunc(was.Status.Value.Targets.Value, func(t node[target]) bool { return t.Value.frozen() }) {
		return
	}
	r.deny("finalPhase", field.Forbidden(path, "may not change because "+before.Value+
		" is final for a HostReplace whose image and format are frozen; create a new MachineOperation instead"))
}

// frozen reports whether the list of targets is frozen: the controller has set the
// condition.
func (s operationStatus) frozen() bool {
	return slices.ContainsFunc(s.Conditions.Value, func(c node[statusCondition]) bool {
		return c.Value.Type.Value == v1alpha3.ConditionFrozen && c.Value.Status.Value == "True"
	})
}

// validateInput judges the pair of one target. An image is frozen once it is
// set. A format, once set, freezes the whole pair. An image without a format is a
// snapshot that predates the format field, and may gain a format once.
func validateInput(was, now host, path *field.Path, r *ratchet) {
	image, format := path.Child("hostImage"), path.Child("provisioningFormat")
	switch {
	case !formatChanged(was, now):
	case !was.declaresFormat():
		r.deny("formatValue", formatValue(now.Format, format)...)
	case !now.declaresFormat():
		r.deny("frozenPair", field.Required(format, fmt.Sprintf(
			"may not be removed because %s is frozen with the image; the client that sent this is older than the field: upgrade it, and have it patch its own fields instead of the whole status",
			resolve.Excerpt(was.Format.Value))))
	default:
		r.deny("frozenPair", field.Invalid(format, now.Format.shown(), fmt.Sprintf(
			"may not change because %s is frozen with the image; create a new MachineOperation to use another format",
			resolve.Excerpt(was.Format.Value))))
	}
	switch {
	case !imageChanged(was, now):
	case was.image() == "" && !was.declaresFormat():
		shape(was.Image, now.Image, "a string", image, r)
		r.deny("imageValue", imageValue(now.image(), image)...)
	case was.image() == "":
		r.deny("frozenPair", field.Invalid(image, now.Image.shown(),
			"must stay empty because the pair is frozen to keep the current image; create a new MachineOperation to install another image"))
	case now.image() == "" && now.Image.raw == "":
		r.deny("frozenPair", field.Required(image, fmt.Sprintf(
			"may not be removed because %q is frozen; a client that rewrites the status must keep it", resolve.Excerpt(was.image()))))
	default:
		r.deny("frozenPair", field.Invalid(image, now.Image.shown(), fmt.Sprintf(
			"may not change because %q is frozen; create a new MachineOperation to install another image", resolve.Excerpt(was.image()))))
	}
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
