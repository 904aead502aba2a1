package operation

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// machineIndex finds HostReplace operations by what a Machine that they act on
// must have: its name or, before targets are taken, one of its labels.
// anyMachine is for selectors that ask for no label by value.
const (
	machineIndex = "machine"
	anyMachine   = "*"
)

func nameKey(machine string) string       { return "name/" + machine }
func labelKey(label, value string) string { return "label/" + label + "=" + value }

// indexByMachine implements machineIndex.
func indexByMachine(object client.Object) []string {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	op, err := newRecord(raw)
	if err != nil || op.Spec.OperationKind != v1alpha3.HostReplace {
		return nil
	}
	if len(op.Status.Targets) > 0 {
		var keys []string
		for _, target := range op.Status.Targets {
			keys = append(keys, nameKey(target.MachineRef))
		}
		return keys
	}
	if op.Spec.MachineRef != "" {
		return []string{nameKey(op.Spec.MachineRef)}
	}
	if selector := op.Spec.MachineSelector; selector != nil && len(selector.MatchLabels) > 0 {
		// One will do, since all must match; the same one each time, since an
		// index forgets an object under the keys that it computes again.
		label := slices.Min(slices.Collect(maps.Keys(selector.MatchLabels)))
		return []string{labelKey(label, selector.MatchLabels[label])}
	}
	return []string{anyMachine}
}

// keysOf are the keys under which operations on a Machine are found.
func keysOf(machine *v1alpha3.Machine) []string {
	keys := []string{nameKey(machine.Name), anyMachine}
	for label, value := range machine.Labels {
		keys = append(keys, labelKey(label, value))
	}
	return keys
}

// findOther returns the name of another HostReplace of a Machine that stands in
// the way of this one: it had not finished when this one was created, since an
// operation does not wait to fire later, and it comes first.
//
// Candidates come from the cache. That may lag, but never behind itself: it
// has heard of this operation only after all that were created before. Whether
// one has finished since is read live.
func (r *Reconciler) findOther(ctx context.Context, op *record, machine *v1alpha3.Machine) (string, error) {
	self := &unstructured.Unstructured{}
	self.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperation"))
	if err := r.Cache.Get(ctx, types.NamespacedName{Name: op.Name}, self); err != nil || self.GetUID() != op.UID {
		return "", fmt.Errorf("the cache has not heard of this operation yet (%w)", errOrStale(err))
	}
	for _, key := range keysOf(machine) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperationList"))
		if err := r.Cache.List(ctx, list, client.MatchingFields{machineIndex: key}); err != nil {
			return "", err
		}
		for i := range list.Items {
			cached, err := newRecord(&list.Items[i])
			if err != nil || cached.UID == op.UID || over(cached, op) || !actsOn(cached, machine) {
				continue
			}
			other, err := r.read(ctx, cached.Name)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return "", err
			}
			if other.UID != op.UID && !over(other, op) && actsOn(other, machine) && first(other, op) {
				return other.Name, nil
			}
		}
	}
	return "", nil
}

func errOrStale(err error) error {
	if err != nil {
		return err
	}
	return apierrors.NewConflict(v1alpha3.GroupVersion.WithResource("machineoperations").GroupResource(), "", nil)
}

// over tells whether another operation had finished when this one was created,
// or has ended without calling anybody. Within one second the two are not told
// apart, and count as not finished. What is over stays so.
func over(other, op *record) bool {
	if !other.Status.Phase.Finished() {
		return false
	}
	called := slices.ContainsFunc(other.Status.Targets, begun)
	return !called || other.Status.CompletedAt == nil || other.Status.CompletedAt.Before(&op.CreationTimestamp)
}

// actsOn tells whether a HostReplace acts on a Machine.
func actsOn(op *record, machine *v1alpha3.Machine) bool {
	if op.Spec.OperationKind != v1alpha3.HostReplace {
		return false
	}
	if len(op.Status.Targets) == 0 && op.CreationTimestamp.Before(&machine.CreationTimestamp) {
		return false // it is refused for that
	}
	if len(op.Status.Targets) > 0 {
		for _, target := range op.Status.Targets {
			if target.MachineRef == machine.Name {
				return true
			}
		}
		return false
	}
	if op.Spec.MachineRef == machine.Name {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(op.Spec.MachineSelector)
	return op.Spec.MachineSelector != nil && err == nil && selector.Matches(labels.Set(machine.Labels))
}

// first tells whether an operation comes before one that has frozen nothing.
func first(other, op *record) bool {
	if len(other.Status.Targets) > 0 {
		return true
	}
	a, b := other.CreationTimestamp, op.CreationTimestamp
	if !a.Equal(&b) {
		return a.Before(&b)
	}
	return other.UID < op.UID
}
