package admission

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// operation is the view of a MachineOperation.
type operation struct {
	Spec   node[operationSpec]   `json:"spec"`
	Status node[operationStatus] `json:"status"`
}

type operationSpec struct {
	OperationKind   node[string] `json:"operationKind"`
	MachineRef      node[string] `json:"machineRef"`
	MachineSelector node[any]    `json:"machineSelector"`
}

type operationStatus struct {
	Phase      node[string]                  `json:"phase"`
	Targets    node[[]node[target]]          `json:"targets"`
	Conditions node[[]node[statusCondition]] `json:"conditions"`
}

// statusCondition is one entry of status.conditions.
type statusCondition struct {
	Type   node[string] `json:"type"`
	Status node[string] `json:"status"`
}

// target is one entry of status.targets.
type target struct {
	MachineRef node[string] `json:"machineRef"`
	Input      node[struct {
		HostImage          node[string] `json:"hostImage"`
		ProvisioningFormat node[string] `json:"provisioningFormat"`
	}] `json:"input"`
}

// host returns the pair of a target.
func (t target) host() host {
	return host{Image: t.Input.Value.HostImage, Format: t.Input.Value.ProvisioningFormat}
}

// frozen reports whether the whole pair of the target is frozen: its format is set.
func (t target) frozen() bool { return t.host().declaresFormat() }

// validateOperation judges the kind and the Machines of an operation. It reads the
// stored status only, since the API server drops a status that is sent to this
// endpoint.
func validateOperation(r *ratchet, was, now *operation) {
	path := field.NewPath("spec")
	before, after := was.Spec.Value, now.Spec.Value
	r.shape(was.Spec.raw, now.Spec.raw, "an object", path)
	r.shape(before.OperationKind.raw, after.OperationKind.raw, "a string", path.Child("operationKind"))
	r.shape(before.MachineRef.raw, after.MachineRef.raw, "a string", path.Child("machineRef"))
	changed := fleetChanged(before, after)
	r.ruleOnChange("shape", changed, fleetSelectorShape(after, path.Child("machineSelector")))
	r.ruleOnChange("fleetSelector", changed, fleetSelector(after, path.Child("machineSelector")))
	r.deny("begunOperation", begunOperation(was, now, path)...)
}

// fleetSelectorShape refuses a HostReplace with a selector that is not an object.
// Other kinds are left to the schema.
func fleetSelectorShape(now operationSpec, path *field.Path) field.ErrorList {
	_, isObject := now.MachineSelector.Value.(map[string]any)
	if now.OperationKind.Value != string(v1alpha3.HostReplace) || now.MachineSelector.Value == nil || isObject {
		return nil
	}
	return field.ErrorList{field.TypeInvalid(path, now.MachineSelector.Value, "must be an object; correct the manifest")}
}

// fleetSelector refuses a HostReplace with an empty selector, which selects
// everything: nobody replaces every host of a fleet by intent.
func fleetSelector(now operationSpec, path *field.Path) field.ErrorList {
	selector, isObject := now.MachineSelector.Value.(map[string]any)
	if now.OperationKind.Value != string(v1alpha3.HostReplace) || !isObject {
		return nil
	}
	labels, _ := selector["matchLabels"].(map[string]any)
	expressions, _ := selector["matchExpressions"].([]any)
	if len(labels) > 0 || len(expressions) > 0 {
		return nil
	}
	return field.ErrorList{field.Required(path,
		"must select by at least one label because an empty selector would replace every host of the fleet; add matchLabels or matchExpressions, or name one Machine in spec.machineRef")}
}

// begunOperation keeps the kind and the Machines of an operation that has begun,
// whatever its kind: an edit of the kind would turn a running reboot into a
// replacement. Parameters may change, since one of them pauses the operation.
func begunOperation(was, now *operation, path *field.Path) field.ErrorList {
	fact := was.Status.Value.begun()
	if fact == "" {
		return nil
	}
	detail := "may not change because this operation has begun (" + fact + "); create a new MachineOperation instead"
	var errs field.ErrorList
	before, after := was.Spec.Value, now.Spec.Value
	if after.OperationKind != before.OperationKind {
		errs = append(errs, field.Forbidden(path.Child("operationKind"), detail))
	}
	if after.MachineRef != before.MachineRef {
		errs = append(errs, field.Forbidden(path.Child("machineRef"), detail))
	}
	if selectorChanged(before.MachineSelector, after.MachineSelector) {
		errs = append(errs, field.Forbidden(path.Child("machineSelector"), detail))
	}
	return errs
}

// begun returns the fact that shows that an operation has begun: a phase or a target.
// It is empty if the operation has not begun. A value of the wrong type counts.
func (s operationStatus) begun() string {
	switch phase := s.Phase.Value + s.Phase.raw; { // one of them at most
	case phase != "":
		return "status.phase is " + resolve.Excerpt(phase)
	case len(s.Targets.Value) > 0 || s.Targets.raw != "":
		return "status.targets is set"
	}
	return ""
}
