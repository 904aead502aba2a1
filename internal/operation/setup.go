package operation

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// ControllerName is what --controllers calls the reconciler of operations.
const ControllerName = "hostreplace"

// cacheSyncTimeout is how long a start may take to read all operations. A history
// of 1.3 GB takes minutes, and a process that gave up would start to read again.
const cacheSyncTimeout = 30 * time.Minute

// SetupWithManager has the manager run the reconciler for every change of an
// operation that may concern it, that many at a time.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, concurrency int) error {
	// Unstructured: one object that Go types refuse would stop a typed cache.
	op := &unstructured.Unstructured{}
	op.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperation"))
	stored := &inventory{r.Cache}
	metrics.Registry.Unregister(stored) // of a manager before, in tests
	if err := metrics.Registry.Register(stored); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(ControllerName).
		For(op, builder.WithPredicates(predicate.Funcs{
			CreateFunc:  func(e event.CreateEvent) bool { return concerns(nil, e.Object) },
			UpdateFunc:  func(e event.UpdateEvent) bool { return concerns(e.ObjectOld, e.ObjectNew) },
			DeleteFunc:  func(event.DeleteEvent) bool { return false },
			GenericFunc: func(event.GenericEvent) bool { return false },
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, CacheSyncTimeout: cacheSyncTimeout}).
		Complete(r)
}

// concerns reports whether a change of an operation may call for something, from
// the two versions alone; was is nil for one that is new. Another controller
// writes the status of its own operations as often as it likes without a read of
// ours.
func concerns(was, now client.Object) bool {
	after, ok := now.(*unstructured.Unstructured)
	if !ok || text(after.Object, "spec", "operationKind") != string(v1alpha3.HostReplace) {
		return false
	}
	if phaseOf(after).Finished() {
		_, expires, _ := unstructured.NestedFieldNoCopy(after.Object, "spec", "ttlSecondsAfterFinished")
		return expires
	}
	before, ok := was.(*unstructured.Unstructured)
	if !ok || before.GetGeneration() != after.GetGeneration() || before.GetDeletionTimestamp() != after.GetDeletionTimestamp() ||
		!maps.Equal(before.GetAnnotations(), after.GetAnnotations()) || !maps.Equal(before.GetLabels(), after.GetLabels()) {
		return true
	}
	if ours(after) || after.GetAnnotations()[begin.StartedAnnotation] != "" {
		return true
	}
	// Another client may record the targets of an operation that we carry out.
	targets := func(op *unstructured.Unstructured) []any { return items(op.Object, "status", "targets") }
	return (len(targets(before)) == 0) != (len(targets(after)) == 0)
}
