package operation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// lookupCall is the call that asks whether an attempt without an answer was accepted.
func (r *Reconciler) lookupCall(op *record, index int) call {
	operation, target := op.UID, op.Status.Targets[index]
	return call{machine: target.MachineRef, method: lookingUp, pool: poolName{provider: r.providerOf(target)}, make: func(ctx context.Context) answer {
		return r.lookUp(ctx, operation, target)
	}}
}

func (r *Reconciler) lookUp(ctx context.Context, operation types.UID, target v1alpha3.OperationTarget) answer {
	got := answer{target: target}
	log := logf.FromContext(ctx).WithValues("machine", target.MachineRef)
	name := ""
	if target.Input != nil {
		name = target.Input.Provider
	}
	if name == "" { // a legacy snapshot does not say
		machine, err := r.readMachine(ctx, target.MachineRef)
		if apierrors.IsNotFound(err) {
			got.fault = resolve.Fault{Reason: resolve.MachineNotFound, Message: "the Machine does not exist any more, and whether its host was replaced is not known"}
			return got
		}
		if err != nil {
			log.Error(err, "the Machine cannot be read")
			got.trouble = trouble{reason: resolve.MachineUnreadable, text: fmt.Sprintf("the Machine cannot be read to look up attempt %d", target.Attempts), err: err.Error()}
			return got
		}
		name, _ = resolve.Provider(machine)
	}
	provider := r.Providers[name]
	if provider == nil {
		got.fault = resolve.Faultf(resolve.ProviderChanged, "provider %q, which was called, is not registered here", name)
		return got
	}
	id, found, err := provider.Lookup(ctx, keyFor(operation, target.MachineRef))
	switch {
	case err != nil && isPermanent(err):
		got.fault = resolve.Fault{Reason: resolve.ProviderFailed, Message: err.Error()}
	case err != nil:
		log.Error(err, "the provider does not say whether it accepted")
		got.trouble = trouble{reason: resolve.ProviderFailing, err: err.Error(),
			text: fmt.Sprintf("the provider does not say whether it accepted attempt %d; it is asked again", target.Attempts)}
	case found:
		got.accepts = v1alpha3.ProviderOperation{Provider: name, OperationID: id}
	default:
		got.notFound = true
	}
	return got
}

// pollCall is the call that asks for the progress of a replacement. ok is false if its
// provider is not registered here; the message of the target says so.
func (r *Reconciler) pollCall(op *record, index int) (c call, ok bool) {
	target := op.Status.Targets[index]
	name := target.ProviderOperation.Provider
	provider := r.Providers[name]
	if provider == nil {
		op.say(index, fmt.Sprintf("provider %q, which replaces the host, is not registered here", name))
		return call{}, false
	}
	return call{machine: target.MachineRef, method: polling, pool: poolName{provider: name, polls: true}, again: r.PollInterval, make: func(ctx context.Context) answer {
		return askProgress(ctx, provider, target)
	}}, true
}

func askProgress(ctx context.Context, provider Provider, target v1alpha3.OperationTarget) answer {
	got := answer{target: target}
	progress, err := provider.Poll(ctx, target.ProviderOperation.OperationID)
	switch {
	case err != nil && isPermanent(err):
		got.fault = resolve.Fault{Reason: resolve.ProviderFailed, Message: err.Error()}
	case err != nil:
		logf.FromContext(ctx).Error(err, "the provider does not say how far it has come", "machine", target.MachineRef)
		got.trouble = trouble{reason: resolve.ProviderFailing, err: err.Error(),
			text: "the host is being replaced, but the provider does not report the progress; it is asked again"}
	case progress.State == Succeeded:
		got.done = true
	case progress.State == Failed:
		got.fault = resolve.Fault{Reason: resolve.ProviderFailed, Message: "the provider reports: " + progress.Message}
	}
	return got
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
