package admission

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// operationStatusEdits trims input.hostImage of every target in which it
// differs from what is stored for that Machine.
func operationStatusEdits(was, now *operation) []edit {
	stored := byMachine(was.Status.V.Targets.V)
	var edits []edit
	for i, t := range now.Status.V.Targets.V {
		before, _, _ := stored.next(t.V.MachineRef.V)
		edits = append(edits, trimImage(before.V.host().Image.V, t.V.host().Image.V,
			"status", "targets", strconv.Itoa(i), "input", "hostImage")...)
	}
	return edits
}

// validateOperationStatus keeps what is frozen, and judges what is newly set.
func validateOperationStatus(was, now *operation, _ func() bool) verdict {
	path := field.NewPath("status")
	errs := shape(was.Status, now.Status, "an object", path)
	errs = append(errs, finalPhase(was, now, path.Child("phase"))...)
	path = path.Child("targets")
	errs = append(errs, shape(was.Status.V.Targets, now.Status.V.Targets, "a list", path)...)

	// Walk the new targets for what they set, the stored ones for what is gone.
	before, after := was.Status.V.Targets.V, now.Status.V.Targets.V
	stored, taken := byMachine(before), was.Status.V.frozen()
	for i, t := range after {
		machine := t.V.MachineRef.V
		old, known, again := stored.next(machine)
		if known && t == old { // as most are
			continue
		}
		at := path.Key(resolve.Excerpt(machine))
		if taken && !known && !again {
			errs = append(errs, field.ErrorList{field.Forbidden(at,
				"may not be added because the targets of this operation are frozen (condition Frozen is True); create a new MachineOperation for this Machine",
			)}.WithOrigin("frozenTargets")...)
		}
		if again {
			err := field.Duplicate(path.Index(i).Child("machineRef"), resolve.Excerpt(machine))
			err.Detail = "may be the target of one entry only; merge the entries"
			errs = append(errs, field.ErrorList{err}.WithOrigin("uniqueTarget")...)
		}
		errs = append(errs, shape(old, t, "an object", path.Index(i))...)
		errs = append(errs, shape(old.V.MachineRef, t.V.MachineRef, "a string", path.Index(i).Child("machineRef"))...)
		errs = append(errs, shape(old.V.Input, t.V.Input, "an object", at.Child("input"))...)
		errs = append(errs, validateInput(old.V.host(), t.V.host(), at.Child("input"))...)
	}
	for _, t := range before {
		machine := t.V.MachineRef.V
		left, _, _ := stored.next(machine)
		if left.V.host().image() == "" && !left.V.frozen() {
			continue
		}
		errs = append(errs, field.ErrorList{field.Required(path.Key(resolve.Excerpt(machine)),
			"may not be removed because its image and format are frozen; a client that rewrites the list must keep every target under its machineRef",
		)}.WithOrigin("frozenPair")...)
	}
	return verdict{errs: errs}
}

// finalPhase keeps the final phase of a HostReplace with a frozen pair. Any other
// phase is refused, not just one that would start the replacement again: a final
// phase is taken for settled by whoever reads it.
func finalPhase(was, now *operation, path *field.Path) field.ErrorList {
	before := was.Status.V.Phase
	if now.Status.V.Phase == before || !v1alpha3.OperationPhase(before.V).Finished() ||
		was.Spec.V.OperationKind.V != string(v1alpha3.HostReplace) ||
		!slices.ContainsFunc(was.Status.V.Targets.V, func(t node[target]) bool { return t.V.frozen() }) {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, "may not change because "+before.V+
		" is final for a HostReplace whose image and format are frozen; create a new MachineOperation instead")}.WithOrigin("finalPhase")
}

// frozen reports whether the targets are frozen as a whole, which the
// controller states in a condition.
func (s operationStatus) frozen() bool {
	return slices.ContainsFunc(s.Conditions.V, func(c node[statusCondition]) bool {
		return c.V.Type.V == v1alpha3.ConditionFrozen && c.V.Status.V == "True"
	})
}

// validateInput judges the pair of one target. An image is frozen once it is
// set. A format, once set, freezes the pair whole. An image without a format
// is a snapshot from before the format field and may gain it once.
func validateInput(was, now host, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	image, format := path.Child("hostImage"), path.Child("provisioningFormat")
	switch {
	case now.sameFormat(was):
	case !was.declaresFormat():
		errs = append(errs, formatValue(now.Format, format)...)
	case !now.declaresFormat():
		errs = append(errs, field.ErrorList{field.Required(format, fmt.Sprintf(
			"may not be removed because %s is frozen with the image; the client that sent this is older than the field: upgrade it, and have it patch its own fields instead of the whole status",
			resolve.Excerpt(was.Format.V)))}.WithOrigin("frozenPair")...)
	default:
		errs = append(errs, field.ErrorList{field.Invalid(format, now.Format.shown(), fmt.Sprintf(
			"may not change because %s is frozen with the image; create a new MachineOperation to use another format",
			resolve.Excerpt(was.Format.V)))}.WithOrigin("frozenPair")...)
	}
	switch {
	case now.sameImage(was):
	case was.image() == "" && !was.declaresFormat():
		errs = append(errs, shape(was.Image, now.Image, "a string", image)...)
		errs = append(errs, imageValue(now.image(), image)...)
	case was.image() == "":
		errs = append(errs, field.ErrorList{field.Invalid(image, now.Image.shown(),
			"must stay empty because the pair is frozen to keep the current image; create a new MachineOperation to install another image",
		)}.WithOrigin("frozenPair")...)
	case now.image() == "" && now.Image.wrong == "":
		errs = append(errs, field.ErrorList{field.Required(image, fmt.Sprintf(
			"may not be removed because %q is frozen; a client that rewrites the status must keep it", resolve.Excerpt(was.image()),
		))}.WithOrigin("frozenPair")...)
	default:
		errs = append(errs, field.ErrorList{field.Invalid(image, now.Image.shown(), fmt.Sprintf(
			"may not change because %q is frozen; create a new MachineOperation to install another image", resolve.Excerpt(was.image()),
		))}.WithOrigin("frozenPair")...)
	}
	return errs
}

// targetsByMachine finds targets by their Machine, in any order of the list.
// Where a list holds a Machine twice, as older CRDs allow, the entries are
// taken in their order.
type targetsByMachine struct {
	targets []node[target]
	first   map[string]int // of the targets of a Machine that are left, its index and one; or none
	after   []int          // what follows each in first
}

func byMachine(targets []node[target]) targetsByMachine {
	m := targetsByMachine{targets, make(map[string]int, len(targets)), make([]int, len(targets))}
	for i := len(targets) - 1; i >= 0; i-- {
		machine := targets[i].V.MachineRef.V
		m.after[i], m.first[machine] = m.first[machine], i+1
	}
	return m
}

// next takes the next target of a Machine. Where none is left, again tells
// whether there was one, or whether it was asked for before.
func (m targetsByMachine) next(machine string) (t node[target], found, again bool) {
	i, again := m.first[machine]
	if i == 0 {
		m.first[machine] = 0
		return node[target]{}, false, again
	}
	m.first[machine] = m.after[i-1]
	return m.targets[i-1], true, false
}
