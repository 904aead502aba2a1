package operation

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// replaceCall is the call that replaces the host of a target. Its attempt is recorded
// before it starts.
func (r *Reconciler) replaceCall(op *record, index int, userData []byte) call {
	was := op.Status.Targets[index]
	return call{machine: was.MachineRef, method: replacing, pool: poolName{provider: r.providerOf(was)}, make: func(ctx context.Context) answer {
		return r.replace(ctx, op, attempted{op.Status.Targets[index], was, userData})
	}}
}

// providerOf returns the provider whose pool a call for a target uses. A legacy
// snapshot does not say it.
func (r *Reconciler) providerOf(target v1alpha3.OperationTarget) string {
	if target.Input != nil && target.Input.Provider != "" {
		return target.Input.Provider
	}
	provider, _ := r.Hosts.ProviderOf(target.MachineRef)
	return provider
}

// attempted is a target whose attempt is recorded.
type attempted struct {
	v1alpha3.OperationTarget
	was      v1alpha3.OperationTarget // before the attempt
	userData []byte
}

// replace makes one attempt. Everything that it depends on is read live right before
// it, within the time that the call has: it may have waited for a slot. If the call is
// not made, the attempt is withdrawn from the record. After a failed read it stays, and
// is looked up and tried again later.
func (r *Reconciler) replace(ctx context.Context, op *record, target attempted) answer {
	got := answer{target: target.OperationTarget}
	log := logf.FromContext(ctx).WithValues("machine", target.MachineRef, "attempt", target.Attempts)
	may, err := r.mayCall(ctx, op, target)
	got.legacy = may.legacy
	if err != nil {
		log.Error(err, "the provider was not called")
		got.trouble = trouble{reason: resolve.MachineUnreadable, err: err.Error(),
			text: fmt.Sprintf("attempt %d was not made and is tried again, since the objects that it depends on cannot be read", target.Attempts)}
		return got
	}
	if !may.call {
		got.fault, got.withdrawn = may.fault, &target.was
		return got
	}
	got.called = true
	provider, replacement := r.Providers[may.host.Provider], may.replacement
	log.Info("calling the provider", "provider", may.host.Provider, "image", replacement.Pair.Image, "format", replacement.Pair.Format, "fence", replacement.Fence)
	id, err := provider.Replace(ctx, replacement)
	if stale, ok := errors.AsType[*FenceError](err); ok {
		log.Info("the provider knows a higher fence", "fence", stale.Fence, "known", stale.Known)
		f, raiseErr := r.raiseClaim(ctx, op, may.host, stale.Known)
		if f.Found() {
			got.fault = f
			return got
		}
		err = errors.Join(errors.New(stale.Error()), raiseErr) // tried again, even if the provider says that it is permanent
	}
	switch {
	case err == nil:
		providerCalls.WithLabelValues(may.host.Provider, "accepted").Inc()
		got.accepts = v1alpha3.ProviderOperation{Provider: may.host.Provider, OperationID: id}
	case isPermanent(err):
		providerCalls.WithLabelValues(may.host.Provider, "failed").Inc()
		got.fault = resolve.Fault{Reason: resolve.ProviderFailed, Message: err.Error()}
	default:
		providerCalls.WithLabelValues(may.host.Provider, "unanswered").Inc()
		log.Error(err, "the provider did not accept")
		got.trouble = trouble{reason: resolve.ProviderFailing, err: err.Error(),
			text: fmt.Sprintf("attempt %d was not accepted and is tried again", target.Attempts)}
	}
	return got
}

// permission says whether a call may be made now, and with what.
type permission struct {
	call        bool
	fault       resolve.Fault // fails the target; without one it waits
	legacy      bool          // a legacy snapshot was resolved
	host        resolve.Host
	replacement Replacement
}

// mayCall reads live everything that a call depends on: the operation may have been
// stopped or paused, its Machine may have been deleted or replaced, and another
// operation may have claimed its host. A legacy snapshot is resolved here.
func (r *Reconciler) mayCall(ctx context.Context, op *record, target attempted) (may permission, err error) {
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
	if !target.was.Begun() {
		// A target that was called before this one may have failed meanwhile.
		pace := resolve.PaceOf(current.Spec.Parameters, current.Status.Targets)
		if pace.Paused || pace.Halted.Found() {
			return permission{fault: pace.RecordFault(target.was)}, nil
		}
	}
	facts, err := r.factsOf(ctx, target.OperationTarget)
	if err != nil {
		return permission{}, err
	}
	decided, fault := resolve.CallOf(resolve.HolderOf(op.MachineOperation), target.OperationTarget, facts)
	may.legacy = decided.Legacy && decided.Result.Format != ""
	if may.legacy {
		legacyAttempts.Inc()
	}
	may.fault = fault
	if !fault.Found() {
		may.call, may.host = true, decided.Host
		may.replacement = Replacement{
			Key: keyFor(op.UID, target.MachineRef), Machine: target.MachineRef, ProviderID: decided.Host.ProviderID,
			Pair: decided.Result.Pair, Fence: int64(facts.Claim.Fence), UserData: target.userData,
		}
	}
	return may, nil
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
