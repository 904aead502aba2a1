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
func validateOperationStatus(r *ratchet, was, now *operation) {
	path := field.NewPath("status")
	r.shape(was.Status.raw, now.Status.raw, "an object", path)
	r.deny("finalPhase", finalPhase(was, now, path.Child("phase"))...)
	path = path.Child("targets")
	r.shape(was.Status.Value.Targets.raw, now.Status.Value.Targets.raw, "a list", path)

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
		r.shape(old.raw, t.raw, "an object", path.Index(i))
		r.shape(old.Value.MachineRef.raw, t.Value.MachineRef.raw, "a string", path.Index(i).Child("machineRef"))
		r.shape(old.Value.Input.raw, t.Value.Input.raw, "an object", at.Child("input"))
		validateInput(r, old.Value.host(), t.Value.host(), at.Child("input"))
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
func finalPhase(was, now *operation, path *field.Path) field.ErrorList {
	before := was.Status.Value.Phase
	if now.Status.Value.Phase == before || !v1alpha3.OperationPhase(before.Value).Finished() ||
		was.Spec.Value.OperationKind.Value != string(v1alpha3.HostReplace) ||
		!slices.ContainsFunc(was.Status.Value.Targets.Value, func(t node[target]) bool { return t.Value.frozen() }) {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, "may not change because "+before.Value+
		" is final for a HostReplace whose image and format are frozen; create a new MachineOperation instead")}
}

// frozen reports whether the list of targets is frozen: the controller has set the
// condition.
func (s operationStatus) frozen() bool {
	return slices.ContainsFunc(s.Conditions.Value, func(c node[statusCondition]) bool {
		return c.Value.Type.Value == v1alpha3.ConditionFrozen && c.Value.Status.Value == "True"
	})
}

// validateInput judges the pair of one target. An image is frozen once it is set. A
// format, once set, freezes the whole pair. An image without a format is a snapshot
// that predates the format field, and may gain a format once.
func validateInput(r *ratchet, was, now host, path *field.Path) {
	image, format := path.Child("hostImage"), path.Child("provisioningFormat")
	if was.declaresFormat() {
		r.deny("frozenPair", frozenFormat(was, now, format)...)
	} else {
		r.ruleOnChange("formatValue", formatChanged(was, now), formatValue(now.Format, format))
	}
	if was.declaresFormat() || was.image() != "" {
		r.deny("frozenPair", frozenImage(was, now, image)...)
	} else {
		r.shape(was.Image.raw, now.Image.raw, "a string", image)
		r.ruleOnChange("imageValue", imageChanged(was, now), imageValue(now.image(), image))
	}
}

// frozenFormat keeps a format that is set.
func frozenFormat(was, now host, path *field.Path) field.ErrorList {
	switch {
	case !formatChanged(was, now):
		return nil
	case !now.declaresFormat():
		return field.ErrorList{field.Required(path, fmt.Sprintf(
			"may not be removed because %s is frozen with the image; the client that sent this is older than the field: upgrade it, and have it patch its own fields instead of the whole status",
			resolve.Excerpt(was.Format.Value)))}
	default:
		return field.ErrorList{field.Invalid(path, now.Format.shown(), fmt.Sprintf(
			"may not change because %s is frozen with the image; create a new MachineOperation to use another format",
			resolve.Excerpt(was.Format.Value)))}
	}
}

// frozenImage keeps an image that is set, and the empty image of a frozen pair.
func frozenImage(was, now host, path *field.Path) field.ErrorList {
	switch {
	case !imageChanged(was, now):
		return nil
	case was.image() == "":
		return field.ErrorList{field.Invalid(path, now.Image.shown(),
			"must stay empty because the pair is frozen to keep the current image; create a new MachineOperation to install another image")}
	case now.image() == "" && now.Image.raw == "":
		return field.ErrorList{field.Required(path, fmt.Sprintf(
			"may not be removed because %q is frozen; a client that rewrites the status must keep it", resolve.Excerpt(was.image())))}
	default:
		return field.ErrorList{field.Invalid(path, now.Image.shown(), fmt.Sprintf(
			"may not change because %q is frozen; create a new MachineOperation to install another image", resolve.Excerpt(was.image())))}
	}
}
