package admission

import (
	"reflect"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// operation is the view of a MachineOperation.
type operation struct {
	Spec   node[operationSpec] `json:"spec"`
	Status node[struct {
		Targets node[[]node[target]] `json:"targets"`
	}] `json:"status"`
}

type operationSpec struct {
	OperationKind   node[string] `json:"operationKind"`
	MachineRef      node[string] `json:"machineRef"`
	MachineSelector node[any]    `json:"machineSelector"`
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
	errs = append(errs, frozenOperation(was, now, path)...)
	return verdict{errs: errs}
}

// fleetSelector refuses a HostReplace whose selector is there and selects
// everything: nobody replaces every host of a fleet by intent.
func fleetSelector(was, now operationSpec, path *field.Path) field.ErrorList {
	same := now.OperationKind.V == was.OperationKind.V && reflect.DeepEqual(now.MachineSelector.V, was.MachineSelector.V)
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

// frozenOperation keeps what a frozen pair was made for.
func frozenOperation(was, now *operation, path *field.Path) field.ErrorList {
	machine, frozen := "", false
	for _, t := range was.Status.V.Targets.V {
		if t.V.frozen() {
			machine, frozen = t.V.MachineRef.V, true
			break
		}
	}
	if !frozen {
		return nil
	}
	detail := "may not change because the image and format for Machine " + resolve.Excerpt(machine) +
		" are frozen (status.targets); create a new MachineOperation instead"
	var errs field.ErrorList
	before, after := was.Spec.V, now.Spec.V
	if after.OperationKind != before.OperationKind {
		errs = append(errs, field.Forbidden(path.Child("operationKind"), detail))
	}
	if after.MachineRef != before.MachineRef {
		errs = append(errs, field.Forbidden(path.Child("machineRef"), detail))
	}
	if !reflect.DeepEqual(after.MachineSelector.V, before.MachineSelector.V) {
		errs = append(errs, field.Forbidden(path.Child("machineSelector"), detail))
	}
	return errs.WithOrigin("frozenOperation")
}
