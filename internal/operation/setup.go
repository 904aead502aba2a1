package operation

import (
	"context"
	"maps"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// ControllerName is what --controllers calls the reconciler of operations.
const ControllerName = "hostreplace"

// cacheSyncTimeout is how long a start may take to read all operations: without end,
// since a process that gave up would start to read again. One that cannot read them is
// not ready, and says so.
const cacheSyncTimeout = math.MaxInt64

// The wait before an operation is reconciled again after an error.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Minute
)

// SetupWithManager makes the manager run the reconciler for every change of an
// operation that may concern it, at most concurrency of them at a time.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, concurrency int) error {
	// Unstructured: one object that Go types refuse would stop a typed cache.
	op := &unstructured.Unstructured{}
	op.SetGroupVersionKind(operationGVK)
	stored := &inventory{r.Cache}
	metrics.Registry.Unregister(stored) // of a manager before, in tests
	if err := metrics.Registry.Register(stored); err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(r.drain)); err != nil {
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
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.Calls.notify(func(operation string, after time.Duration) { queue.AddAfter(requestFor(operation), after) })
			return nil
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency, CacheSyncTimeout: cacheSyncTimeout,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r)
}

func requestFor(operation string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: operation}}
}

// answerGrace is how long calls may take to return when the process is asked to end.
// Afterwards they are canceled, and whoever works next looks them up.
const answerGrace = 5 * time.Second

// drain waits for the end of the process, and then until every call has returned and
// its answer is recorded. No further call is made meanwhile.
func (r *Reconciler) drain(ctx context.Context) error {
	<-ctx.Done()
	r.Calls.close()
	defer time.AfterFunc(answerGrace, r.Calls.cancel).Stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DrainTimeout(r.Calls.options.Timeout))
	defer cancel()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		names := r.Calls.unrecorded()
		if len(names) == 0 && r.Calls.Outstanding() == 0 {
			return nil
		}
		for _, name := range names {
			// An error is met again in the next round.
			_, _ = r.Reconcile(ctx, requestFor(name))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.Calls.returned:
		case <-look.C:
		}
	}
}

// DrainTimeout is how long a process takes to end at most, given the time that one
// call may take: a provider may ignore that its call was canceled.
func DrainTimeout(callTimeout time.Duration) time.Duration { return callTimeout + 10*time.Second }

// concerns reports whether a change of an operation may need a step of ours; was is
// nil for a new operation. When another controller writes the status of its own
// operations, we do not read them.
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
	if ours(after) || after.GetAnnotations()[resolve.StartedAnnotation] != "" {
		return true
	}
	// Another client may record the targets of an operation that we carry out.
	targets := func(op *unstructured.Unstructured) []any { return items(op.Object, "status", "targets") }
	return (len(targets(before)) == 0) != (len(targets(after)) == 0)
}
