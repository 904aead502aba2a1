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
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// makeCalls calls the provider for each attempt that was recorded, and notes
// the answers. It returns the calls that were made, and when to look again, 0 for
// not at all.
func (r *Reconciler) makeCalls(ctx context.Context, op *record, calls []call) (made []call, wake time.Duration) {
	for _, c := range calls {
		called, after := r.makeCall(ctx, op, c)
		wake = sooner(wake, after)
		if called {
			made = append(made, c)
		}
	}
	return made, wake
}

// makeCall makes one attempt. What it depends on is read live just before it,
// within the time that the call has: the calls before it may have taken long.
// Where the call is not made, the attempt is taken back from the record, unless
// a read has failed: then it is looked up and tried again later.
func (r *Reconciler) makeCall(ctx context.Context, op *record, c call) (made bool, wake time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	target := op.Status.Targets[c.index]
	log := logf.FromContext(ctx).WithValues("machine", target.MachineRef, "attempt", target.Attempts)
	retry := r.Backoff.after(target.Attempts)

	may, err := r.mayCall(ctx, op, c)
	if err != nil {
		log.Error(err, "the provider was not called")
		r.say(op, c.index, fmt.Sprintf("attempt %d was not made and is tried again: what it depends on cannot be read", target.Attempts))
		return false, retry
	}
	if !may.call {
		op.resetTarget(c.index, c.was)
		if may.fault.found() {
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
		if f.found() {
			r.fail(op, c.index, f)
			return true, 0
		}
		err = errors.Join(errors.New(stale.Error()), raiseErr) // tried again, even if the provider says that it is permanent
	}
	switch {
	case err == nil:
		providerCalls.WithLabelValues(may.host.Provider, "accepted").Inc()
		r.accept(op, c.index, may.host.Provider, id)
		return true, r.PollInterval
	case isPermanent(err):
		providerCalls.WithLabelValues(may.host.Provider, "failed").Inc()
		r.fail(op, c.index, fault{begin.ProviderFailed, err.Error()})
		return true, 0
	default:
		providerCalls.WithLabelValues(may.host.Provider, "unanswered").Inc()
		log.Error(err, "the provider did not accept")
		r.say(op, c.index, fmt.Sprintf("attempt %d was not accepted and is tried again: %v", target.Attempts, err))
		return true, retry
	}
}

// permission says whether a call may be made now, and with what.
type permission struct {
	call        bool
	fault       fault // fails the target; without one it merely waits
	host        begin.Host
	replacement Replacement
}

// mayCall reads live all that a call depends on: the operation may have been
// stopped or paused, its Machine may be gone or another one, its host may have
// been claimed by another operation. A legacy snapshot is resolved here.
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
		parameters, unreadable := begin.ReadParameters(current.Spec.Parameters)
		if unreadable != "" || parameters.Pause {
			return permission{}, nil
		}
		// A target that was called just before this one may have failed.
		if f := faultOf(begin.HaltFault(op.Status.Targets, parameters)); f.found() {
			return permission{fault: f}, nil
		}
	}

	machine, err := r.readMachine(ctx, target.MachineRef)
	if apierrors.IsNotFound(err) {
		machine, err = nil, nil
	}
	if err != nil {
		return permission{}, err
	}
	var input v1alpha3.OperationInput
	if target.Input != nil {
		input = *target.Input
	}
	if f := faultOf(resolve.PinFault(input, machine)); f.found() {
		return permission{fault: f}, nil
	}
	host := begin.HostOf(machine)
	if r.Providers[host.Provider] == nil {
		return permission{fault: fault{resolve.ProviderChanged, fmt.Sprintf("provider %q is not registered here", host.Provider)}}, nil
	}
	pair := pairOf(target)
	if pair.Format == "" {
		result, err := resolve.Snapshot(input.HostImage, machine)
		if err != nil {
			return permission{fault: fault{resolve.NotResolved, err.Error()}}, nil //nolint:nilerr // the fault says it
		}
		pair = result.Pair
		op.setCondition(v1alpha3.ConditionFrozen, metav1.ConditionFalse, "LegacySnapshot",
			"the snapshot is from before the format field: its format is resolved again at each attempt and is not guaranteed to stay", r.Clock.Now())
		legacyAttempts.Inc()
		r.say(op, c.index, "legacy snapshot: "+resolved{machine: machine, result: result}.describe())
		if f := pairFault(pair); f.found() {
			return permission{fault: f}, nil
		}
	}
	fence, f, err := r.fenceOf(ctx, op, host)
	if err != nil || f.found() {
		return permission{fault: f}, err
	}
	return permission{call: true, host: host, replacement: Replacement{
		Key: keyFor(op.UID, machine.Name), Machine: machine.Name, ProviderID: host.ProviderID,
		Pair: pair, Fence: fence, UserData: c.userData,
	}}, nil
}

// refresh returns an operation as it is stored now. Its targets may take a
// megabyte: they are read again only if somebody has written meanwhile.
func (r *Reconciler) refresh(ctx context.Context, op *record) (*record, error) {
	current := &metav1.PartialObjectMetadata{}
	current.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperation"))
	if err := r.Live.Get(ctx, types.NamespacedName{Name: op.Name}, current); err != nil {
		return nil, err
	}
	if current.UID == op.UID && current.ResourceVersion == op.ResourceVersion {
		return op, nil
	}
	return r.read(ctx, op.Name)
}
