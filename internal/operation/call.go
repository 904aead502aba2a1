package operation

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// makeCalls calls the provider for each attempt that was recorded, and puts the
// answers into the status. It returns the calls that were made, and when to look
// again, 0 for not at all.
func (r *Reconciler) makeCalls(ctx context.Context, op *record, calls []call) (made []call, requeueAfter time.Duration) {
	for _, c := range calls {
		called, after := r.makeCall(ctx, op, c)
		requeueAfter = earliest(requeueAfter, after)
		if called {
			made = append(made, c)
		}
	}
	return made, requeueAfter
}

// makeCall makes one attempt. Everything that it depends on is read live right
// before it, within the time that the call has: the calls before it may have taken
// long. If the call is not made, the attempt is removed from the record. After a
// failed read it stays, and is looked up and tried again later.
func (r *Reconciler) makeCall(ctx context.Context, op *record, c call) (made bool, requeueAfter time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	target := op.Status.Targets[c.index]
	log := logf.FromContext(ctx).WithValues("machine", target.MachineRef, "attempt", target.Attempts)
	retry := r.Backoff.after(target.Attempts)

	may, err := r.mayCall(ctx, op, c)
	if err != nil {
		log.Error(err, "the provider was not called")
		op.say(c.index, fmt.Sprintf("attempt %d was not made and is tried again: the objects that it depends on cannot be read", target.Attempts))
		return false, retry
	}
	if !may.call {
		op.Status.Targets[c.index] = c.was
		if may.fault.Found() {
			r.fail(op, c.index, may.fault)
		}
		return false, 0
	}
	provider, replacement := r.Providers[may.host.Provider], may.replacement
	log.Info("calling the provider", "provider", may.host.Provider, "image", replacement.Pair.Image, "format", replacement.Pair.Format, "fence", replacement.Fence)
	id, err := provider.Replace(ctx, replacement)
	if stale, ok := errors.AsType[*FenceError](err); ok {
		log.Info("the provider knows a higher fence", "fence", stale.Fence, "known", stale.Known)
		f, raiseErr := r.raiseClaim(ctx, op, may.host, stale.Known)
		if f.Found() {
			r.fail(op, c.index, f)
			return true, 0
		}
		err = errors.Join(errors.New(stale.Error()), raiseErr) // tried again, even if the provider says that it is permanent
	}
	switch {
	case err == nil:
		providerCalls.WithLabelValues(may.host.Provider, "accepted").Inc()
		op.accept(c.index, may.host.Provider, id)
		return true, r.PollInterval
	case isPermanent(err):
		providerCalls.WithLabelValues(may.host.Provider, "failed").Inc()
		r.fail(op, c.index, resolve.Fault{Reason: resolve.ProviderFailed, Message: err.Error()})
		return true, 0
	default:
		providerCalls.WithLabelValues(may.host.Provider, "unanswered").Inc()
		log.Error(err, "the provider did not accept")
		op.say(c.index, fmt.Sprintf("attempt %d was not accepted and is tried again: %v", target.Attempts, err))
		return true, retry
	}
}

// permission says whether a call may be made now, and with what.
type permission struct {
	call        bool
	fault       resolve.Fault // fails the target; without one it waits
	host        resolve.Host
	replacement Replacement
}

// mayCall reads live everything that a call depends on: the operation may have been
// stopped or paused, its Machine may have been deleted or replaced, and another
// operation may have claimed its host. A legacy snapshot is resolved here.
func (r *Reconciler) mayCall(ctx context.Context, op *record, c call) (permission, error) {
	target := op.Status.Targets[c.index]
	current, err := r.refresh(ctx, op)
	if apierrors.IsNotFound(err) {
		return permission{}, nil
	}
	if err != nil {
		return permission{}, err
	}
	if current.UID != op.UID || current.DeletionTimestamp != nil || current.Status.Phase.Finished() {
		return permission{}, nil
	}
	if c.first {
		// A target that was called right before this one may have failed.
		pace := resolve.PaceOf(current.Spec.Parameters, op.Status.Targets)
		if pace.Paused || pace.Halted.Found() {
			return permission{fault: pace.RecordFault(c.was)}, nil
		}
	}
	facts, err := r.factsOf(ctx, target)
	if err != nil {
		return permission{}, err
	}
	holder := resolve.HolderOf(op.MachineOperation)
	decided, fault := resolve.CallOf(holder, target, facts)
	if decided.Legacy && decided.Result.Format != "" {
		legacyAttempts.Inc()
		op.setCondition(v1alpha3.ConditionFrozen, metav1.ConditionFalse, resolve.LegacySnapshot,
			"the snapshot predates the format field: its format is resolved again at each attempt and is not guaranteed to stay", r.Clock.Now())
		op.say(c.index, "legacy snapshot: "+decided.Result.String())
	}
	if fault.Found() {
		return permission{fault: fault}, nil
	}
	return permission{call: true, host: decided.Host, replacement: Replacement{
		Key: keyFor(op.UID, target.MachineRef), Machine: target.MachineRef, ProviderID: decided.Host.ProviderID,
		Pair: decided.Result.Pair, Fence: int64(facts.Claim.Fence), UserData: c.userData,
	}}, nil
}

// factsOf reads live what a call for a target depends on.
func (r *Reconciler) factsOf(ctx context.Context, target v1alpha3.OperationTarget) (resolve.Facts, error) {
	facts := resolve.Facts{Serves: r.serves}
	machine, err := r.readMachine(ctx, target.MachineRef)
	if apierrors.IsNotFound(err) {
		return facts, nil
	}
	if err != nil {
		return facts, err
	}
	facts.Machine = machine
	_, claim, err := r.readClaim(ctx, resolve.HostOf(machine))
	facts.Claim = &claim
	return facts, err
}

// refresh returns an operation as it is stored now. Its targets may take a
// megabyte: they are read again only if the operation has changed.
func (r *Reconciler) refresh(ctx context.Context, op *record) (*record, error) {
	current := &metav1.PartialObjectMetadata{}
	current.SetGroupVersionKind(operationGVK)
	if err := r.Live.Get(ctx, types.NamespacedName{Name: op.Name}, current); err != nil {
		return nil, err
	}
	if current.UID == op.UID && current.ResourceVersion == op.ResourceVersion {
		return op, nil
	}
	return r.read(ctx, op.Name)
}
