package operation

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// ControllerName is what --controllers calls the reconciler of operations.
const ControllerName = "hostreplace"

// SetupWithManager has the manager run the reconciler for every change of an
// operation, that many at a time.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrency int) error {
	// Unstructured: one object that Go types refuse would stop a typed cache.
	op := &unstructured.Unstructured{}
	op.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperation"))
	if err := mgr.GetFieldIndexer().IndexField(ctx, op, machineIndex, indexByMachine); err != nil {
		return err
	}
	stored := &inventory{r.Cache}
	metrics.Registry.Unregister(stored) // of a manager before, in tests
	if err := metrics.Registry.Register(stored); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(ControllerName).
		For(op).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(r)
}
