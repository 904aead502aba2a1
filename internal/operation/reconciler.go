// Package operation carries out HostReplace operations: it claims the hosts,
// freezes one pair of image and format for each target before anything
// destructive happens, and makes one destructive call a target however often
// things crash and however many processes run.
//
// Package resolve decides; this package reads, writes and calls. Reconcile
// (reconciler.go) takes the step that is due. A new operation starts: pick.go reads
// what it acts on, start.go claims the hosts (claim.go) and freezes the pairs
// (freeze.go), and mark.go marks the operation. A started operation advances:
// answer.go records the answers that have come, and attempt.go the attempts that are
// due; the calls of call.go, and those of followup.go, which look up and poll earlier
// ones, then run beside the reconciles (calls.go). plan.go says which comes next for a
// target, stalled.go what holds it up. finish.go ends targets and operations. record.go
// is the only way to write a status. Everything that a destructive step depends on is read live,
// never from a cache.
package operation

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/strict"
)

// Reconciler carries out the HostReplace operations of Machines whose provider
// is registered with it, and leaves every other operation untouched.
type Reconciler struct {
	// Live reads from the API server.
	Live client.Reader
	// Cache holds operations, of finished ones only the fields that CacheOptions
	// keeps. It may lag, and is only used to skip live reads.
	Cache client.Reader
	// Hosts finds the Machines that name one host. It may lag.
	Hosts HostIndex
	// Writer writes.
	Writer client.Client
	// Providers are those that this process can call, by name.
	Providers map[string]Provider
	UserData  *UserData
	Recorder  events.EventRecorder
	Clock     clock.PassiveClock
	Backoff   Backoff
	// PollInterval is how often a provider is asked how far it has come.
	PollInterval time.Duration
	// Calls are the calls of providers that this process makes.
	Calls *Calls
	// ClaimNamespace is where the claims on hosts are kept. All processes that
	// replace the same hosts must have the same one.
	ClaimNamespace string
	// MarkDeployed marks a version as deployed before its pair is frozen. It is
	// for where our own configuration controller runs.
	MarkDeployed bool

	once sync.Once
	// writers lets one reconcile of an operation run at a time: those of the
	// controller, and those that record the last answers when the process ends.
	writers keymutex.KeyMutex
	// changed is the wait after an operation that was changed meanwhile.
	changed workqueue.TypedRateLimiter[reconcile.Request]
}

// HostIndex finds the Machines that name a host.
type HostIndex interface {
	// HasSynced reports whether the index has been filled.
	HasSynced() bool
	// Naming returns the names of the Machines that name the host.
	Naming(provider, providerID string) []string
	// ProviderOf returns the provider that a Machine names; known is false where
	// the index lacks the Machine.
	ProviderOf(machine string) (provider string, known bool)
}

// Reconcile takes an operation one step further. Every step can be repeated.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	r.once.Do(func() {
		r.writers = keymutex.NewHashed(1 << 10)
		r.changed = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstConflictRetry, lastRetry)
	})
	r.writers.LockKey(request.Name)
	defer func() { _ = r.writers.UnlockKey(request.Name) }()
	result, err := r.reconcile(ctx, request)
	if apierrors.IsConflict(err) || errors.Is(err, errChanged) {
		// The operation has changed meanwhile: decide again what is due.
		return reconcile.Result{RequeueAfter: r.changed.When(request)}, nil
	}
	r.changed.Forget(request)
	return result, err
}

// firstConflictRetry is the wait after a first conflict. It grows with each further
// one: another client may write the operation all the time.
const firstConflictRetry = 50 * time.Millisecond

func (r *Reconciler) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	cached := &unstructured.Unstructured{}
	cached.SetGroupVersionKind(operationGVK)
	if err := r.Cache.Get(ctx, request.NamespacedName, cached); err != nil {
		return reconcile.Result{}, r.ended(ctx, request.Name, err)
	}
	if text(cached.Object, "spec", "operationKind") != string(v1alpha3.HostReplace) {
		return reconcile.Result{}, nil
	}
	if phaseOf(cached).Finished() {
		r.reportEnded(ctx, request.Name, "")
		return r.expire(ctx, cached)
	}
	if r.othersMachine(cached) {
		// The index may not know yet that the Machine has become ours. If the
		// operation is new, look once more.
		if age := r.Clock.Now().Sub(cached.GetCreationTimestamp().Time); age < indexLag {
			return reconcile.Result{RequeueAfter: indexLag}, nil
		}
		return reconcile.Result{}, nil
	}
	op, err := r.read(ctx, request.Name)
	if err != nil {
		return reconcile.Result{}, r.ended(ctx, request.Name, err)
	}
	result, err := r.sequence(ctx, op)
	if strict.SchemaTooOld(err) {
		return reconcile.Result{}, r.refuseOldSchema(ctx, op)
	}
	return result, err
}

// indexLag is how far the index of hosts is expected to lag at most.
const indexLag = 15 * time.Second

// othersMachine reports whether an operation has not started and is for a Machine
// whose provider is not registered here. It reads nothing.
func (r *Reconciler) othersMachine(cached *unstructured.Unstructured) bool {
	machine := text(cached.Object, "spec", "machineRef")
	selector, _, _ := unstructured.NestedFieldNoCopy(cached.Object, "spec", "machineSelector")
	if machine == "" || selector != nil || ours(cached) || len(items(cached.Object, "status", "targets")) > 0 {
		return false
	}
	provider, known := r.Hosts.ProviderOf(machine)
	return known && r.Providers[provider] == nil
}

// ours reports whether this controller has started or refused an operation: it has
// the condition Frozen, with any status. The object may have a megabyte, and this is
// called for each event, so it is not decoded.
func ours(op *unstructured.Unstructured) bool {
	return slices.ContainsFunc(items(op.Object, "status", "conditions"), func(item any) bool {
		condition, _ := item.(map[string]any)
		return condition["type"] == v1alpha3.ConditionFrozen
	})
}

// ended handles an operation that cannot be read. If it does not exist any more, the
// answers that it can no longer record are reported.
func (r *Reconciler) ended(ctx context.Context, name string, err error) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	r.reportEnded(ctx, name, "")
	return nil
}

// sequence takes the step that is due.
func (r *Reconciler) sequence(ctx context.Context, op *record) (reconcile.Result, error) {
	unfinished := op.UID
	if op.DeletionTimestamp != nil || op.Status.Phase.Finished() {
		unfinished = ""
	}
	r.reportEnded(ctx, op.Name, unfinished)
	if op.Spec.OperationKind != v1alpha3.HostReplace || op.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	copied := resolve.CopyFault(op.MachineOperation)
	switch {
	case op.Status.Phase.Finished():
		return r.expire(ctx, op.raw)
	case copied.Found():
		return reconcile.Result{}, r.refuse(ctx, op, copied)
	case len(op.Status.Targets) == 0:
		return r.start(ctx, op)
	case !r.canCall(op):
		return reconcile.Result{}, nil // another process has started it, for a provider of its own
	case !resolve.Marked(op.MachineOperation):
		return reconcile.Result{}, r.mark(ctx, op)
	}
	return r.advance(ctx, op)
}
