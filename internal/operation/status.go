package operation

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// maxMessage bounds every message that is stored, in bytes.
const maxMessage = 512

func bounded(message string) string { return resolve.Cut(message, maxMessage) }

// record is an operation as it was read, and its status as it is to be
// written. It is kept raw: a status made from our types would erase what they
// do not know, in list elements too.
type record struct {
	*v1alpha3.MachineOperation // for reading; never written
	was, now                   *unstructured.Unstructured
	failed                     []int // targets that fail with the next write
}

func newRecord(raw *unstructured.Unstructured) (*record, error) {
	r := &record{was: raw, now: raw.DeepCopy(), MachineOperation: &v1alpha3.MachineOperation{}}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, r.MachineOperation)
	if err != nil {
		r.MachineOperation = &v1alpha3.MachineOperation{}
		readable := raw.DeepCopy()
		dropTimes(readable.Object["status"])
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(readable.Object, r.MachineOperation)
	}
	return r, err
}

// dropTimes removes from a status, for reading only, every time that Go cannot
// parse: CRDs take spellings that it does not, and an operation must not be
// stuck, or overlooked, for one.
func dropTimes(value any) {
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			dropTimes(item)
		}
	case map[string]any:
		for name, item := range value {
			switch name {
			case "startedAt", "completedAt", "lastAttemptAt", "lastTransitionTime":
				text, _ := item.(string)
				if _, err := time.Parse(time.RFC3339, text); err != nil {
					delete(value, name)
				}
			default:
				dropTimes(item)
			}
		}
	}
}

// set writes a field of the status.
func (r *record) set(value any, fields ...string) {
	_ = unstructured.SetNestedField(r.now.Object, value, append([]string{"status"}, fields...)...)
}

// has tells whether the status has a field, as it is to be written.
func (r *record) has(field string) bool {
	_, found, _ := unstructured.NestedFieldNoCopy(r.now.Object, "status", field)
	return found
}

// setTarget writes fields of the target at an index.
func (r *record) setTarget(index int, fields map[string]any) {
	target := r.rawTarget(index)
	maps.Copy(target, fields)
	r.retype(index, target)
}

// resetTarget puts the target at an index back to what it was.
func (r *record) resetTarget(index int, was map[string]any) {
	target := r.rawTarget(index)
	clear(target)
	maps.Copy(target, was)
	r.retype(index, target)
}

func (r *record) rawTarget(index int) map[string]any {
	return items(r.now.Object, "status", "targets")[index].(map[string]any)
}

// retype has the typed view of a target follow, so that later steps of this
// reconcile see what was set.
func (r *record) retype(index int, target map[string]any) {
	typed := v1alpha3.OperationTarget{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(target, &typed) != nil {
		readable := runtime.DeepCopyJSON(target)
		dropTimes(readable)
		typed = v1alpha3.OperationTarget{}
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(readable, &typed)
	}
	r.Status.Targets[index] = typed
}

func (r *record) setCondition(kind string, status metav1.ConditionStatus, reason, message string, now time.Time) {
	meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: bounded(message), ObservedGeneration: r.Generation,
		LastTransitionTime: metav1.NewTime(now),
	})
	condition := meta.FindStatusCondition(r.Status.Conditions, kind)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(condition)
	if err != nil {
		return
	}
	conditions, _, _ := unstructured.NestedSlice(r.now.Object, "status", "conditions")
	for i := range conditions {
		if existing, ok := conditions[i].(map[string]any); ok && existing["type"] == kind {
			conditions[i] = content
			r.set(conditions, "conditions")
			return
		}
	}
	r.set(append(conditions, content), "conditions")
}

func (r *record) frozen() bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha3.ConditionFrozen)
}

// patch is a merge patch of what has changed in the status. It carries the
// resourceVersion that was read: whatever changed since is a conflict, and
// nothing is overwritten.
func (r *record) patch() (patch []byte, changed bool, err error) {
	was, _, _ := unstructured.NestedMap(r.was.Object, "status")
	now, _, _ := unstructured.NestedMap(r.now.Object, "status")
	status := map[string]any{}
	for field, value := range now {
		if !reflect.DeepEqual(was[field], value) {
			status[field] = value
		}
	}
	if len(status) == 0 {
		return nil, false, nil
	}
	patch, err = json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": r.was.GetResourceVersion()},
		"status":   status,
	})
	return patch, true, err
}

// strictly makes an error of a field that the CRD would else drop in silence.
var strictly = &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{FieldValidation: metav1.FieldValidationStrict}}

// write stores what has changed in the status, strictly: a field that the CRD
// does not know is an error, where it would else be dropped in silence. The
// record then is as it was stored.
func (r *record) write(ctx context.Context, c client.Client, how ...client.SubResourcePatchOption) error {
	patch, changed, err := r.patch()
	if err != nil || !changed {
		return err
	}
	raw := r.was.DeepCopy()
	err = c.Status().Patch(ctx, raw, client.RawPatch(types.MergePatchType, patch), append(how, strictly)...)
	if err != nil {
		return err
	}
	stored, err := newRecord(raw)
	if err == nil {
		*r = *stored
	}
	return err
}

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
