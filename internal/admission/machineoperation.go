package admission

import (
	"reflect"
	"slices"

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
	return host{Image: t.Input.V.HostImage, Format: t.Input.V.ProvisioningFormat}
}

// frozen tells whether the target's pair is frozen whole, which a format does.
func (t target) frozen() bool { return t.host().declaresFormat() }

// validateOperation judges what an operation acts on. It reads the stored
// status only, since a status sent to this endpoint is dropped.
func validateOperation(was, now *operation, _ func() bool) verdict {
	path := field.NewPath("spec")
	before, after := was.Spec.V, now.Spec.V
	errs := shape(was.Spec, now.Spec, "an object", path)
	errs = append(errs, shape(before.OperationKind, after.OperationKind, "a string", path.Child("operationKind"))...)
	errs = append(errs, shape(before.MachineRef, after.MachineRef, "a string", path.Child("machineRef"))...)
	errs = append(errs, fleetSelector(before, after, path)...)
	errs = append(errs, begunOperation(was, now, path)...)
	return verdict{errs: errs}
}

// fleetSelector refuses a HostReplace whose selector is there and selects
// everything: nobody replaces every host of a fleet by intent.
func fleetSelector(was, now operationSpec, path *field.Path) field.ErrorList {
	same := now.OperationKind.V == was.OperationKind.V && sameSelector(was.MachineSelector.V, now.MachineSelector.V)
	if same || now.OperationKind.V != string(v1alpha3.HostReplace) || now.MachineSelector.V == nil {
		return nil
	}
	path = path.Child("machineSelector")
	selector, ok := now.MachineSelector.V.(map[string]any)
	if !ok {
		return field.ErrorList{field.TypeInvalid(path, now.MachineSelector.V, "must be an object; correct the manifest")}.WithOrigin("shape")
	}
	labels, _ := selector["matchLabels"].(map[string]any)
	expressions, _ := selector["matchExpressions"].([]any)
	if len(labels) > 0 || len(expressions) > 0 {
		return nil
	}
	return field.ErrorList{field.Required(path,
		"must select by at least one label because an empty selector would replace every host of the fleet; add matchLabels or matchExpressions, or name one Machine in spec.machineRef",
	)}.WithOrigin("fleetSelector")
}

// begunOperation keeps what an operation that has begun does, and to which
// Machines, whatever its kind: an edit of the kind would turn a reboot that is
// running into a replacement. Parameters may change, since one of them pauses
// the operation.
func begunOperation(was, now *operation, path *field.Path) field.ErrorList {
	fact := was.Status.V.begun()
	if fact == "" {
		return nil
	}
	detail := "may not change because this operation has begun (" + fact + "); create a new MachineOperation instead"
	var errs field.ErrorList
	before, after := was.Spec.V, now.Spec.V
	if after.OperationKind != before.OperationKind {
		errs = append(errs, field.Forbidden(path.Child("operationKind"), detail))
	}
	if after.MachineRef != before.MachineRef {
		errs = append(errs, field.Forbidden(path.Child("machineRef"), detail))
	}
	if !sameSelector(before.MachineSelector.V, after.MachineSelector.V) {
		errs = append(errs, field.Forbidden(path.Child("machineSelector"), detail))
	}
	return errs.WithOrigin("begunOperation")
}

// begun returns what shows that an operation has begun: a phase or a target. It
// is empty for an operation that has not. A value of the wrong shape counts.
func (s operationStatus) begun() string {
	switch phase := s.Phase.V + s.Phase.wrong; { // one of them at most
	case phase != "":
		return "status.phase is " + resolve.Excerpt(phase)
	case len(s.Targets.V) > 0 || s.Targets.wrong != "":
		return "status.targets is set"
	}
	return ""
}

// sameSelector reports whether two selectors mean the same. Typed clients drop
// empty fields, so an empty field is the same as an absent one. An empty
// selector is not the same as an absent one: it selects everything.
func sameSelector(was, now any) bool {
	return reflect.DeepEqual(withoutEmpty(was, "matchLabels", "matchExpressions"), withoutEmpty(now, "matchLabels", "matchExpressions"))
}

// withoutEmpty returns an object without those of the given fields that are
// null or empty. What is in a list of a field loses empty values.
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

// empty reports whether a field says no more than its absence does.
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
