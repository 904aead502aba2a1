package operation

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// call is an attempt that is about to be recorded, and then made.
type call struct {
	index    int            // of the target
	was      map[string]any // the target before the attempt was recorded
	first    bool           // no attempt was made before
	userData []byte
}

// advance takes every target one step further: it follows up what was
// accepted, prepares what is to be called, records all that in one write, and
// only then calls. A write that fails, for whatever reason, means no call.
func (r *Reconciler) advance(ctx context.Context, op *record) (reconcile.Result, error) {
	calls, wake := r.step(ctx, op)
	if err := r.save(ctx, op); err != nil {
		return reconcile.Result{}, err
	}
	if len(calls) > 0 {
		made, after := r.makeCalls(ctx, op, calls)
		wake = sooner(wake, after)
		if err := r.save(ctx, op); err != nil {
			return reconcile.Result{}, r.mourn(ctx, op, made, err)
		}
	}
	r.announce(op)
	return reconcile.Result{RequeueAfter: wake}, nil
}

// step plans each target, and does what takes no destructive call. It returns
// the calls to make, and when to look again, 0 for not at all.
func (r *Reconciler) step(ctx context.Context, op *record) (calls []call, wake time.Duration) {
	var due []int // targets that the provider may be called for
	seen := map[string]bool{}
	for i := range op.Status.Targets {
		target := op.Status.Targets[i]
		if f := faultOf(begin.DuplicateFault(seen, target)); f.found() {
			r.fail(op, i, f)
			continue
		}
		next := next(target)
		if next == attempt || next == lookUp {
			if f := faultOf(begin.TargetFault(op.MachineOperation, target)); f.found() {
				r.fail(op, i, f)
				continue
			}
		}
		switch next {
		case none:
		case poll:
			wake = sooner(wake, r.poll(ctx, op, i))
		case lookUp:
			again, after := r.lookUp(ctx, op, i)
			wake = sooner(wake, after)
			if again {
				due = append(due, i)
			}
		case attempt:
			due = append(due, i)
		}
	}
	// What is begun counts already; what begins next has to fit beside it.
	parameters, unreadable := begin.ReadParameters(op.Spec.Parameters)
	room := parameters.MaxInFlight - begin.InFlight(op.Status.Targets)
	halt := faultOf(begin.HaltFault(op.Status.Targets, parameters))
	for _, i := range due {
		begun := op.Status.Targets[i].Begun()
		switch {
		case !begun && (unreadable != "" || parameters.Pause): // an edit of the spec brings us back
		case !begun && halt.found():
			r.fail(op, i, halt)
		case begun || room > 0:
			c := r.prepare(op, i)
			if c == nil {
				halt = faultOf(begin.HaltFault(op.Status.Targets, parameters))
				continue
			}
			calls = append(calls, *c)
			if !begun {
				room--
			}
		}
	}
	return calls, wake
}

// sooner returns the shorter of two waits, of which 0 is none at all.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || (b > 0 && b < a) {
		return b
	}
	return a
}

// prepare checks what can be known without a read, renders the user data, and
// records the attempt in the status that is about to be written. Nil means that
// the target has failed.
func (r *Reconciler) prepare(op *record, index int) *call {
	target := op.Status.Targets[index]
	if pair := pairOf(target); pair.Format != "" {
		if f := pairFault(pair); f.found() {
			r.fail(op, index, f)
			return nil
		}
	}
	userData, err := r.UserData.Render(target.MachineRef)
	if err != nil {
		r.fail(op, index, fault{begin.UserDataTooLarge, err.Error()})
		return nil
	}
	was := runtime.DeepCopyJSON(op.rawTarget(index))
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
	return &call{index, was, !target.Begun(), userData}
}

// pairOf returns the pair of a target as it was frozen. A legacy snapshot has no
// format.
func pairOf(target v1alpha3.OperationTarget) resolve.Pair {
	if target.Input == nil {
		return resolve.Pair{}
	}
	return resolve.Pair{Image: resolve.TrimImage(target.Input.HostImage), Format: target.Input.ProvisioningFormat}
}

// pairFault reports why a pair with a format is not delivered.
func pairFault(pair resolve.Pair) fault { return faultOf(begin.PairFault(pair)) }

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

func (r *Reconciler) fail(op *record, index int, f fault) {
	op.setTarget(index, map[string]any{
		"phase": string(v1alpha3.OperationFailed), "stage": string(f.reason),
		"message": bounded(f.message), "completedAt": timestamp(r.Clock.Now()),
	})
	op.failed = append(op.failed, index)
}

// save writes what has changed. Where a target fails with that write, and no
// attempt of it was made, the claim on its host is given back: the name of the
// operation may then be used for that host again. The write comes first: it is
// refused where another process has made an attempt meanwhile.
func (r *Reconciler) save(ctx context.Context, op *record) error {
	failed := op.failed
	r.settle(op)
	if err := op.write(ctx, r.Writer); err != nil {
		return err
	}
	if len(failed) == 0 {
		return nil
	}
	kept := map[string]bool{} // Machines and claims of targets that have used theirs, or may
	for _, target := range op.Status.Targets {
		if target.Begun() || !target.Phase.Finished() {
			kept[target.MachineRef] = true
			if host, pinned := begin.PinnedHost(target); pinned {
				kept[host.ClaimName()] = true
			}
		}
	}
	for _, index := range failed {
		target := op.Status.Targets[index]
		if target.Begun() || kept[target.MachineRef] {
			continue
		}
		host, pinned := begin.PinnedHost(target)
		if !pinned { // a legacy snapshot was claimed for the Machine as it is
			machine, err := r.readMachine(ctx, target.MachineRef)
			if err != nil {
				logf.FromContext(ctx).V(1).Info("the claim on the host of a Machine that cannot be read is not given back", "machine", target.MachineRef)
				continue
			}
			host = begin.HostOf(machine)
		}
		if kept[host.ClaimName()] {
			continue
		}
		if _, err := r.giveBack(ctx, op, host); err != nil {
			// The operation cannot use it any more: it is free for others, and
			// only the name counts as used.
			logf.FromContext(ctx).Error(err, "the claim on the host could not be given back", "machine", target.MachineRef)
		}
	}
	return nil
}
