package operation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// lookUp asks whether an attempt without an answer was accepted. It returns
// whether to make it again now. Otherwise it returns when to look again, 0 for not
// at all.
func (r *Reconciler) lookUp(ctx context.Context, op *record, index int) (again bool, after time.Duration) {
	target := op.Status.Targets[index]
	name := ""
	if target.Input != nil {
		name = target.Input.Provider
	}
	if name == "" { // a legacy snapshot does not say
		machine, err := r.readMachine(ctx, target.MachineRef)
		if apierrors.IsNotFound(err) {
			r.fail(op, index, resolve.Fault{Reason: resolve.MachineNotFound, Message: "the Machine does not exist any more, and whether its host was replaced is not known"})
			return false, 0
		}
		if err != nil {
			logf.FromContext(ctx).Error(err, "the Machine cannot be read", "machine", target.MachineRef)
			return false, r.Backoff.after(target.Attempts)
		}
		name, _ = resolve.Provider(machine)
	}
	provider := r.Providers[name]
	if provider == nil {
		r.fail(op, index, resolve.Faultf(resolve.ProviderChanged, "provider %q, which was called, is not registered here", name))
		return false, 0
	}
	id, found, err := provider.Lookup(ctx, keyFor(op.UID, target.MachineRef))
	switch {
	case err != nil && isPermanent(err):
		r.fail(op, index, resolve.Fault{Reason: resolve.ProviderFailed, Message: err.Error()})
		return false, 0
	case err != nil:
		// The error is not recorded: its text may differ each time, and each change
		// of the status causes another reconcile at once.
		logf.FromContext(ctx).Error(err, "the provider does not say whether it accepted", "machine", target.MachineRef)
		op.say(index, fmt.Sprintf("the provider does not say whether it accepted attempt %d; it is asked again", target.Attempts))
		return false, r.Backoff.after(target.Attempts)
	case found:
		op.accept(index, name, id)
		return false, r.PollInterval
	}
	wait := r.untilNextAttempt(target)
	return wait == 0, wait
}

// poll asks for the progress of a replacement, and returns when to ask again, 0
// for not at all.
func (r *Reconciler) poll(ctx context.Context, op *record, index int) time.Duration {
	target := op.Status.Targets[index]
	provider := r.Providers[target.ProviderOperation.Provider]
	if provider == nil {
		op.say(index, fmt.Sprintf("provider %q, which replaces the host, is not registered here", target.ProviderOperation.Provider))
		return 0
	}
	progress, err := provider.Poll(ctx, target.ProviderOperation.OperationID)
	switch {
	case err != nil && isPermanent(err):
		r.fail(op, index, resolve.Fault{Reason: resolve.ProviderFailed, Message: err.Error()})
		return 0
	case err != nil:
		logf.FromContext(ctx).Error(err, "the provider does not say how far it has come", "machine", target.MachineRef)
		return max(r.PollInterval, r.Backoff.Cap/10)
	case progress.State == Succeeded:
		r.complete(op, index)
		return 0
	case progress.State == Failed:
		r.fail(op, index, resolve.Fault{Reason: resolve.ProviderFailed, Message: "the provider reports: " + progress.Message})
		return 0
	}
	return r.PollInterval
}

// untilNextAttempt is how long to wait before an attempt is repeated. An attempt
// that seems to lie in the future was recorded by another clock and is not waited
// for: the provider has just been asked whether it was accepted.
func (r *Reconciler) untilNextAttempt(target v1alpha3.OperationTarget) time.Duration {
	now := r.Clock.Now()
	if target.LastAttemptAt == nil || target.LastAttemptAt.After(now) {
		return 0
	}
	return max(0, target.LastAttemptAt.Add(r.Backoff.after(target.Attempts)).Sub(now))
}
