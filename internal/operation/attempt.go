package operation

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// advance takes every target one step further: it records the answers that have come
// and the attempts that are due in one write, and only then makes the calls. If the
// write fails, no call is made.
func (r *Reconciler) advance(ctx context.Context, op *record) (reconcile.Result, error) {
	answers := r.Calls.answers(op.UID)
	r.recordAnswers(op, answers)
	p := r.step(op)
	defer func() { r.Calls.abandon(op.UID, p.asked) }()
	wasStalled := op.stalled()
	requeueAfter := earliest(p.requeueAfter, r.reportTrouble(op, p.waiting))
	if err := r.save(ctx, op); err != nil {
		return reconcile.Result{}, err
	}
	r.Calls.recorded(op.UID, answers)
	for _, due := range p.calls {
		r.Calls.start(ctx, op, due)
	}
	r.announceStalled(op, wasStalled)
	r.announce(op)
	if op.Status.Phase.Finished() {
		r.reportEnded(ctx, op.Name, "")
	}
	return reconcile.Result{RequeueAfter: requeueAfter}, nil
}

// plan is what is due for the targets of an operation.
type plan struct {
	calls        []call
	asked        map[ticket]bool     // for slots
	waiting      map[string]poolName // Machines whose call has no slot yet
	requeueAfter time.Duration       // 0 for not at all
}

// step plans each target, and puts into the status what is recorded before a call.
func (r *Reconciler) step(op *record) plan {
	now := r.Clock.Now()
	p := plan{asked: map[ticket]bool{}, waiting: map[string]poolName{}}
	// reserve plans a call if there is a slot for it.
	reserve := func(c call) bool {
		t := ticket{c.pool, op.UID, op.Name, c.machine}
		p.asked[t] = true
		if !r.Calls.reserve(t) {
			p.waiting[c.machine] = c.pool
			return false
		}
		p.calls = append(p.calls, c)
		p.requeueAfter = earliest(p.requeueAfter, c.again)
		return true
	}
	var due []int // targets that the provider may be called for
	for i, fault := range resolve.TargetFaults(op.MachineOperation) {
		if fault.Found() {
			r.fail(op, i, fault)
			continue
		}
		target := op.Status.Targets[i]
		known := r.Calls.of(op.UID, target.MachineRef)
		todo := next(target)
		switch {
		case todo == none:
		case known.outstanding != nil:
			if known.outstanding.method == polling {
				p.requeueAfter = earliest(p.requeueAfter, r.PollInterval)
			}
		case known.next.left(now) > 0:
			p.requeueAfter = earliest(p.requeueAfter, known.next.left(now))
		case todo == attempt, todo == lookUp && known.notFound == target.Attempts:
			due = append(due, i)
		case todo == poll:
			if c, ok := r.pollCall(op, i); ok {
				reserve(c)
			}
		default:
			reserve(r.lookupCall(op, i))
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
		if !reserve(r.replaceCall(op, i, userData)) {
			continue // a free slot brings us back
		}
		if !target.Begun() {
			pace.Room--
		}
		r.recordAttempt(op, i)
	}
	return p
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
