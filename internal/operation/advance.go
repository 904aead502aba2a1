package operation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// call is an attempt that is about to be recorded, and then made.
type call struct {
	index       int                     // of the target
	input       v1alpha3.OperationInput // as it was frozen
	provider    Provider
	name        string // of the provider
	replacement Replacement
}

// advance takes every target one step further: it follows up what was
// accepted, prepares what is to be called, records all that in one write, and
// only then calls. A write that fails, for whatever reason, means no call.
func (r *Reconciler) advance(ctx context.Context, op *record) (reconcile.Result, error) {
	calls, wake, unreadable := r.step(ctx, op)
	r.settle(op)
	if err := op.write(ctx, r.Writer); err != nil {
		return reconcile.Result{}, err
	}
	if len(calls) > 0 {
		wake = sooner(wake, r.makeCalls(ctx, op, calls))
		r.settle(op)
		if err := op.write(ctx, r.Writer); err != nil {
			return reconcile.Result{}, r.mourn(ctx, op, calls, err)
		}
	}
	r.announce(op)
	return reconcile.Result{RequeueAfter: wake}, unreadable
}

// step plans each target, and does what takes no destructive call. It returns
// the calls to make, when to look again (0 for not at all), and the last error
// of a read, which held up its own target only.
func (r *Reconciler) step(ctx context.Context, op *record) (calls []call, wake time.Duration, unreadable error) {
	seen := map[string]bool{}
	for i := range op.Status.Targets {
		target := op.Status.Targets[i]
		if reason, message := begin.DuplicateFault(seen, target); reason != "" {
			r.fail(op, i, string(reason), message)
			continue
		}
		next := next(target)
		if next == poll {
			wake = sooner(wake, r.poll(ctx, op, i))
		}
		if next == lookUp {
			again, after := r.lookUp(ctx, op, i)
			wake = sooner(wake, after)
			if again {
				next = attempt
			}
		}
		if next == attempt {
			c, err := r.prepare(ctx, op, i)
			if err != nil {
				unreadable = err
			}
			if c != nil {
				calls = append(calls, *c)
			}
		}
	}
	return calls, wake, unreadable
}

// sooner returns the shorter of two waits, of which 0 is none at all.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || (b > 0 && b < a) {
		return b
	}
	return a
}

// prepare checks what a destructive call depends on and records the attempt in
// the status that is about to be written. Nil means that the target has failed.
func (r *Reconciler) prepare(ctx context.Context, op *record, index int) (*call, error) {
	target := op.Status.Targets[index]
	var input v1alpha3.OperationInput
	if target.Input != nil {
		input = *target.Input
	}
	machine, err := r.readTarget(ctx, op, index)
	if machine == nil {
		return nil, err
	}
	pair := resolve.Pair{Image: resolve.TrimImage(input.HostImage), Format: input.ProvisioningFormat}
	if pair.Format == "" {
		result, err := resolve.Snapshot(input.HostImage, machine)
		if err != nil {
			r.fail(op, index, string(resolve.NotResolved), err.Error())
			return nil, nil
		}
		pair = result.Pair
		op.setCondition(ConditionFrozen, metav1.ConditionFalse, "LegacySnapshot",
			"the snapshot is from before the format field: its format is resolved again at each attempt and is not guaranteed to stay", r.Clock.Now())
		legacyAttempts.Inc()
		r.say(op, index, "legacy snapshot: "+resolved{machine: machine, result: result}.describe())
	} else if fault := resolve.PairFault(pair); fault != "" {
		r.fail(op, index, string(resolve.InvalidPair), fault)
		return nil, nil
	}
	if fault := resolve.DeliveryFault(pair); fault != "" {
		r.fail(op, index, string(resolve.IgnitionNotDeliverable), fault+"; the provider was not called")
		return nil, nil
	}
	if reason, message := resolve.PinFault(input, machine); reason != "" {
		r.fail(op, index, string(reason), message)
		return nil, nil
	}
	name, providerID := resolve.Provider(machine)
	provider := r.Providers[name]
	if provider == nil {
		r.fail(op, index, "ProviderChanged", fmt.Sprintf("provider %q is not registered here", name))
		return nil, nil
	}
	userData, err := r.UserData.Render(machine.Name)
	if err != nil {
		r.fail(op, index, "UserDataTooLarge", err.Error())
		return nil, nil
	}

	now := timestamp(r.Clock.Now())
	fields := map[string]any{
		"attempts":      int64(target.Attempts) + 1,
		"lastAttemptAt": now,
		"phase":         string(v1alpha3.OperationInProgress),
		"stage":         stageCalling,
	}
	if target.StartedAt == nil {
		fields["startedAt"] = now
	}
	op.setTarget(index, fields)
	return &call{index, input, provider, name, Replacement{
		Key: keyFor(op.UID, machine.Name), Machine: machine.Name, ProviderID: providerID, Pair: pair, UserData: userData,
	}}, nil
}

// readTarget reads the Machine of a target live. Nil without an error means
// that it is gone, and that the target has failed.
func (r *Reconciler) readTarget(ctx context.Context, op *record, index int) (*v1alpha3.Machine, error) {
	machine, err := r.readMachine(ctx, op.Status.Targets[index].MachineRef)
	if apierrors.IsNotFound(err) {
		reason, message := resolve.PinFault(v1alpha3.OperationInput{}, nil)
		r.fail(op, index, string(reason), message)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return machine, nil
}

// makeCalls calls the provider for each attempt that was recorded, and notes
// the answers. What a call depends on is read again just before it, since the
// calls before may have taken long: an operation that was stopped meanwhile
// makes no further one. It returns when to look again, 0 for not at all.
func (r *Reconciler) makeCalls(ctx context.Context, op *record, calls []call) time.Duration {
	wake := time.Duration(0)
	for _, c := range calls {
		target := op.Status.Targets[c.index]
		if current, err := r.read(ctx, op.Name); err != nil || current.UID != op.UID || current.DeletionTimestamp != nil || current.Status.Phase.Finished() {
			return sooner(wake, r.Backoff.after(target.Attempts))
		}
		machine, err := r.readTarget(ctx, op, c.index)
		if err != nil {
			wake = sooner(wake, r.Backoff.after(target.Attempts))
		}
		if machine == nil {
			continue
		}
		if reason, message := resolve.PinFault(c.input, machine); reason != "" {
			r.fail(op, c.index, string(reason), message)
			continue
		}
		log := logf.FromContext(ctx).WithValues("machine", target.MachineRef, "attempt", target.Attempts)
		log.Info("calling the provider", "provider", c.name, "image", c.replacement.Pair.Image, "format", c.replacement.Pair.Format)
		id, err := c.provider.Replace(ctx, c.replacement)
		switch {
		case err == nil:
			providerCalls.WithLabelValues(c.name, "accepted").Inc()
			r.accept(op, c.index, c.name, id)
			wake = sooner(wake, r.PollInterval)
		case isPermanent(err):
			providerCalls.WithLabelValues(c.name, "failed").Inc()
			r.fail(op, c.index, "ProviderFailed", err.Error())
		default:
			providerCalls.WithLabelValues(c.name, "unanswered").Inc()
			log.Error(err, "the provider did not accept")
			r.say(op, c.index, fmt.Sprintf("attempt %d was not accepted and is tried again: %v", target.Attempts, err))
			wake = sooner(wake, r.Backoff.after(target.Attempts))
		}
	}
	return wake
}

// untilNextAttempt is how long to wait before an attempt is repeated. One that
// seems to lie in the future was recorded by another clock and is not waited
// for: whether it was accepted has just been asked.
func (r *Reconciler) untilNextAttempt(target v1alpha3.OperationTarget) time.Duration {
	now := r.Clock.Now()
	if target.LastAttemptAt == nil || target.LastAttemptAt.After(now) {
		return 0
	}
	return max(0, target.LastAttemptAt.Add(r.Backoff.after(target.Attempts)).Sub(now))
}

func (r *Reconciler) accept(op *record, index int, provider, id string) {
	record := map[string]any{"provider": provider, "operationID": id}
	op.setTarget(index, map[string]any{"providerOperation": record, "stage": stageReplacing, "message": "the host is being replaced"})
}

func (r *Reconciler) say(op *record, index int, message string) {
	op.setTarget(index, map[string]any{"message": bounded(message)})
}

func (r *Reconciler) fail(op *record, index int, reason, message string) {
	op.setTarget(index, map[string]any{
		"phase": string(v1alpha3.OperationFailed), "stage": reason,
		"message": bounded(message), "completedAt": timestamp(r.Clock.Now()),
	})
}
