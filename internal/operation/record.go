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

// record is an operation with its status as it is to be written. Steps change
// the Status in place, and write stores what has changed.
type record struct {
	*v1alpha3.MachineOperation
	// raw is the operation as it was read. Fields that our types lack stay as
	// they are in it, in list elements too.
	raw *unstructured.Unstructured
	// was is the status as it was read.
	was v1alpha3.MachineOperationStatus
}

// read reads an operation live.
func (r *Reconciler) read(ctx context.Context, name string) (*record, error) {
	raw := &unstructured.Unstructured{}
	raw.SetGroupVersionKind(operationGVK)
	if err := r.Live.Get(ctx, types.NamespacedName{Name: name}, raw); err != nil {
		return nil, err
	}
	return newRecord(raw)
}

func newRecord(raw *unstructured.Unstructured) (*record, error) {
	r := &record{raw: raw, MachineOperation: &v1alpha3.MachineOperation{}}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, r.MachineOperation)
	if err != nil {
		r.MachineOperation = &v1alpha3.MachineOperation{}
		readable := raw.DeepCopy()
		dropTimes(readable.Object["status"])
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(readable.Object, r.MachineOperation)
	}
	r.was = *r.Status.DeepCopy()
	return r, err
}

// dropTimes removes from a status, for reading only, every time that Go cannot
// parse. CRDs accept spellings that Go does not, and one of them must not block
// an operation.
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

// had reports whether the status had a field when it was read, even one with a
// value that Go cannot parse.
func (r *record) had(field string) bool {
	_, found, _ := unstructured.NestedFieldNoCopy(r.raw.Object, "status", field)
	return found
}

// say sets the message of a target.
func (r *record) say(index int, message string) {
	r.Status.Targets[index].Message = bounded(message)
}

// accept records that the provider has accepted the call for a target.
func (r *record) accept(index int, provider, id string) {
	target := &r.Status.Targets[index]
	target.ProviderOperation, target.Stage = &v1alpha3.ProviderOperation{Provider: provider, OperationID: id}, stageReplacing
	r.say(index, replacingMessage)
}

// replacingMessage is the message of a target whose replacement is under way.
const replacingMessage = "the host is being replaced"

// stalled reports whether the operation has the condition Stalled with the status True.
func (r *record) stalled() bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha3.ConditionStalled)
}

// setCondition sets a condition of the operation.
func (r *record) setCondition(kind string, status metav1.ConditionStatus, reason resolve.Reason, message string, now time.Time) {
	meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: string(reason), Message: bounded(message), ObservedGeneration: r.Generation,
		LastTransitionTime: metav1.NewTime(now),
	})
}

// patch returns a merge patch of what has changed in the status. It carries the
// resourceVersion that was read: if the operation has changed since, the write is
// a conflict, and nothing is overwritten.
func (r *record) patch() (patch []byte, changed bool, err error) {
	was, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&r.was)
	if err != nil {
		return nil, false, err
	}
	now, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&r.Status)
	if err != nil {
		return nil, false, err
	}
	raw, _, _ := unstructured.NestedFieldNoCopy(r.raw.Object, "status")
	stored, _ := raw.(map[string]any)
	status := map[string]any{}
	for field, value := range now {
		if !reflect.DeepEqual(was[field], value) {
			status[field] = overlay(stored[field], was[field], value)
		}
	}
	if len(status) == 0 {
		return nil, false, nil
	}
	patch, err = json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": r.raw.GetResourceVersion()},
		"status":   status,
	})
	return patch, true, err
}

// overlay returns a stored value with the changes that were made to the part of
// it that our types know: was before, now after them. It changes neither. Lists
// only ever grow.
func overlay(stored, was, now any) any {
	if reflect.DeepEqual(was, now) {
		return stored
	}
	switch now := now.(type) {
	case map[string]any:
		before, _ := was.(map[string]any)
		kept, ok := stored.(map[string]any)
		if !ok {
			return now
		}
		kept = maps.Clone(kept)
		for field, value := range now {
			kept[field] = overlay(kept[field], before[field], value)
		}
		for field := range before {
			if _, left := now[field]; !left {
				delete(kept, field)
			}
		}
		return kept
	case []any:
		before, _ := was.([]any)
		kept, _ := stored.([]any)
		result := make([]any, len(now))
		for i, item := range now {
			result[i] = item
			if i < len(before) && i < len(kept) {
				result[i] = overlay(kept[i], before[i], item)
			}
		}
		return result
	}
	return now
}

// strictly makes an error of a field that the CRD would otherwise drop silently.
var strictly = &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{FieldValidation: metav1.FieldValidationStrict}}

// write stores what has changed in the status. A field that the CRD does not know
// is an error. Afterwards, the record is as it was stored.
func (r *record) write(ctx context.Context, c client.Client, how ...client.SubResourcePatchOption) error {
	patch, changed, err := r.patch()
	if err != nil || !changed {
		return err
	}
	raw := r.raw.DeepCopy()
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

// timestamp returns a time as a status stores it, in whole seconds.
func timestamp(t time.Time) *metav1.Time {
	seconds := metav1.NewTime(t).Rfc3339Copy()
	return &seconds
}
