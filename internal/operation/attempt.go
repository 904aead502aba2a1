package operation

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// call is an attempt that is about to be recorded, and then made.
type call struct {
	index    int                      // of the target
	was      v1alpha3.OperationTarget // the target before the attempt was recorded
	first    bool                     // no attempt was made before
	userData []byte
}

// advance takes every target one step further: it follows up accepted calls,
// prepares the calls that are due, records all that in one write, and only then
// calls the provider. If the write fails, no call is made.
func (r *Reconciler) advance(ctx context.Context, op *record) (reconcile.Result, error) {
	calls, requeueAfter := r.step(ctx, op)
	if err := r.save(ctx, op); err != nil {
		return reconcile.Result{}, err
	}
	if len(calls) > 0 {
		made, after := r.makeCalls(ctx, op, calls)
		requeueAfter = earliest(requeueAfter, after)
		if err := r.save(ctx, op); err != nil {
			return reconcile.Result{}, r.reportUnrecorded(ctx, op, made, err)
		}
	}
	r.announce(op)
	return reconcile.Result{RequeueAfter: requeueAfter}, nil
}

// step plans each target, and does everything that needs no destructive call. It
// returns the calls to make, and when to look again, 0 for not at all.
func (r *Reconciler) step(ctx context.Context, op *record) (calls []call, requeueAfter time.Duration) {
	var due []int // targets that the provider may be called for
	for i, fault := range resolve.TargetFaults(op.MachineOperation) {
		if fault.Found() {
			r.fail(op, i, fault)
			continue
		}
		switch next(op.Status.Targets[i]) {
		case none:
		case poll:
			requeueAfter = earliest(requeueAfter, r.poll(ctx, op, i))
		case lookUp:
			again, after := r.lookUp(ctx, op, i)
			requeueAfter = earliest(requeueAfter, after)
			if again {
				due = append(due, i)
			}
		case attempt:
			due = append(due, i)
		}
	}
	// Targets that have begun count already; the rest begin in the room that is left.
	pace := resolve.PaceOf(op.Spec.Parameters, op.Status.Targets)
	for _, i := range due {
		target := op.Status.Targets[i]
		if !target.Begun() && (pace.Paused || pace.Room <= 0 && !pace.Halted.Found()) {
			continue // an edit of the spec, or the end of another target, brings us back
		}
		fault := pace.RecordFault(target)
		var userData []byte
		if !fault.Found() {
			userData, fault = r.render(target.MachineRef)
		}
		if fault.Found() {
			r.fail(op, i, fault)
			if fault.Reason != resolve.Halted { // one more has failed by itself
				pace.Halted = resolve.PaceOf(op.Spec.Parameters, op.Status.Targets).Halted
			}
			continue
		}
		if !target.Begun() {
			pace.Room--
		}
		r.recordAttempt(op, i)
		calls = append(calls, call{i, target, !target.Begun(), userData})
	}
	return calls, requeueAfter
}

// recordAttempt puts an attempt into the status that is about to be written.
func (r *Reconciler) recordAttempt(op *record, index int) {
	target := &op.Status.Targets[index]
	now := timestamp(r.Clock.Now())
	target.Attempts, target.LastAttemptAt = target.Attempts+1, now
	target.Phase, target.Stage = v1alpha3.OperationInProgress, stageCalling
	if target.StartedAt == nil {
		target.StartedAt = now
	}
}

// render returns the user data of a Machine. The fault says that it is too large.
func (r *Reconciler) render(machine string) ([]byte, resolve.Fault) {
	userData, err := r.UserData.Render(machine)
	if err != nil {
		return nil, resolve.Fault{Reason: resolve.UserDataTooLarge, Message: err.Error()}
	}
	return userData, resolve.Fault{}
}

// earliest returns the shorter of two waits, of which 0 means none at all.
func earliest(a, b time.Duration) time.Duration {
	if a == 0 || (b > 0 && b < a) {
		return b
	}
	return a
}
