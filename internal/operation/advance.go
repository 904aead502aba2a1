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
	"unbounded-cloud.io/hostformat/internal/strict"
)

// call is an attempt that is about to be recorded, and then made.
type call struct {
	index       int // of the target
	provider    Provider
	name        string // of the provider
	replacement Replacement
}

// advance takes every target one step further: it follows up what was
// accepted, prepares what is to be called, records all that in one write, and
// only then calls. A write that fails, for whatever reason, means no call.
func (r *Reconciler) advance(ctx context.Context, op *record) (reconcile.Result, error) {
	var calls []call
	wake := time.Duration(0)
	again := func(after time.Duration) {
		if after > 0 && (wake == 0 || after < wake) {
			wake = after
		}
	}
	for i := range op.Status.Targets {
		target := op.Status.Targets[i]
		next := next(target)
		if next == poll {
			if !r.poll(ctx, op, i) {
				again(r.PollInterval)
			}
			continue
		}
		if next == lookUp {
			accepted, err := r.lookUp(ctx, op, i)
			switch {
			case err != nil:
				r.say(op, i, fmt.Sprintf("the provider cannot be asked about attempt %d, which is tried again: %v", target.Attempts, err))
				again(r.Backoff.after(target.Attempts))
				continue
			case accepted:
				again(r.PollInterval)
				continue
			}
			if wait := r.untilNextAttempt(target); wait > 0 {
				again(wait)
				continue
			}
		}
		if next == none {
			continue
		}
		c, err := r.prepare(ctx, op, i)
		if err != nil {
			return reconcile.Result{}, err
		}
		if c != nil {
			calls = append(calls, *c)
		}
	}
	r.settle(op)
	if err := op.write(ctx, r.Writer); err != nil {
		if strict.SchemaTooOld(err) {
			return reconcile.Result{}, r.refuseOldSchema(ctx, op)
		}
		return reconcile.Result{}, err
	}
	if len(calls) == 0 {
		r.announce(op)
		return reconcile.Result{RequeueAfter: wake}, nil
	}
	again(r.makeCalls(ctx, op, calls))
	r.settle(op)
	if err := op.write(ctx, r.Writer); err != nil {
		if apierrors.IsNotFound(err) {
			r.mourn(ctx, op, calls)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	r.announce(op)
	return reconcile.Result{RequeueAfter: wake}, nil
}

// prepare checks what a destructive call depends on and records the attempt in
// the status that is about to be written. Nil means that the target has failed.
func (r *Reconciler) prepare(ctx context.Context, op *record, index int) (*call, error) {
	target := op.Status.Targets[index]
	var input v1alpha3.OperationInput
	if target.Input != nil {
		input = *target.Input
	}
	machine, err := r.readMachine(ctx, target.MachineRef)
	if apierrors.IsNotFound(err) {
		r.fail(op, index, "MachineNotFound", "the Machine does not exist any more")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pair := resolve.Pair{Image: resolve.TrimImage(input.HostImage), Format: input.ProvisioningFormat}
	if pair.Format == "" {
		result, err := resolve.Snapshot(input.HostImage, machine)
		if err != nil {
			r.fail(op, index, "NotResolved", err.Error())
			return nil, nil
		}
		pair = result.Pair
		op.setCondition(ConditionFrozen, metav1.ConditionFalse, "LegacySnapshot",
			"the snapshot is from before the format field: its format is resolved again at each attempt and is not guaranteed to stay", r.Clock.Now())
		r.say(op, index, "legacy snapshot: "+resolved{machine: machine, result: result}.describe())
	} else if fault := resolve.PairFault(pair); fault != "" {
		r.fail(op, index, "InvalidPair", fault)
		return nil, nil
	}
	if pair.Format == v1alpha3.Ignition {
		r.fail(op, index, "IgnitionNotDeliverable",
			"the image boots with Ignition, and this controller generates cloud-init only; the provider was not called")
		return nil, nil
	}
	if reason, message := pinFault(input, machine); reason != "" {
		r.fail(op, index, reason, message)
		return nil, nil
	}
	name, providerID := providerOf(machine)
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
	return &call{index, provider, name, Replacement{
		Key: keyFor(op.UID, machine.Name), Machine: machine.Name, ProviderID: providerID, Pair: pair, UserData: userData,
	}}, nil
}

// makeCalls calls the provider for each attempt that was recorded, and notes
// the answers. It returns when to try again, 0 for not at all.
func (r *Reconciler) makeCalls(ctx context.Context, op *record, calls []call) time.Duration {
	wake := time.Duration(0)
	for _, c := range calls {
		target := op.Status.Targets[c.index]
		log := logf.FromContext(ctx).WithValues("machine", target.MachineRef, "attempt", target.Attempts)
		log.Info("calling the provider", "provider", c.name, "image", c.replacement.Pair.Image, "format", c.replacement.Pair.Format)
		id, err := c.provider.Replace(ctx, c.replacement)
		switch {
		case err == nil:
			r.accept(op, c.index, c.name, id)
			wake = r.PollInterval
		case isPermanent(err):
			r.fail(op, c.index, "ProviderFailed", err.Error())
		default:
			log.Error(err, "the provider did not accept")
			r.say(op, c.index, fmt.Sprintf("attempt %d was not accepted and is tried again: %v", target.Attempts, err))
			if after := r.Backoff.after(target.Attempts); wake == 0 || after < wake {
				wake = after
			}
		}
	}
	return wake
}

// untilNextAttempt is how long to wait before an attempt is repeated. A clock
// that was set back cannot make it longer than the backoff itself.
func (r *Reconciler) untilNextAttempt(target v1alpha3.OperationTarget) time.Duration {
	backoff := r.Backoff.after(target.Attempts)
	if target.LastAttemptAt == nil {
		return 0
	}
	return min(backoff, target.LastAttemptAt.Add(backoff).Sub(r.Clock.Now()))
}

func (r *Reconciler) accept(op *record, index int, provider, id string) {
	record := map[string]any{"provider": provider, "operationID": id}
	op.setTarget(index, map[string]any{"providerOperation": record, "stage": stageReplacing})
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
