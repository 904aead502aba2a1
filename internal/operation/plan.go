package operation

import (
	"time"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// Stages of a target, in order.
const (
	stageFrozen    = "Frozen"
	stageCalling   = "CallingProvider"
	stageReplacing = "Replacing"
	stageDone      = "Done"
)

// action is what comes next for a target.
type action int

const (
	none    action = iota // it has finished
	attempt               // call the provider for the first time
	lookUp                // ask whether an attempt was accepted, before another
	poll                  // ask how far the replacement has come
)

// next plans one target from what is recorded of it, never from its phase
// alone: an attempt counts once it is recorded, a call once it is answered.
func next(t v1alpha3.OperationTarget) action {
	switch {
	case t.Phase.Finished():
		return none
	case t.Accepted():
		return poll
	case t.Attempts > 0:
		return lookUp
	default:
		return attempt
	}
}

// begun tells whether a call for the target was made, or may have been.
func begun(t v1alpha3.OperationTarget) bool { return t.Attempts > 0 || t.ProviderOperation != nil }

// outcome is the phase that the targets give their operation.
func outcome(targets []v1alpha3.OperationTarget) v1alpha3.OperationPhase {
	moved, failed, open := false, false, false
	for _, t := range targets {
		moved = moved || begun(t) || t.Phase.Finished()
		failed = failed || t.Phase == v1alpha3.OperationFailed
		open = open || !t.Phase.Finished()
	}
	switch {
	case open && moved:
		return v1alpha3.OperationInProgress
	case open:
		return v1alpha3.OperationPending
	case failed:
		return v1alpha3.OperationFailed
	default:
		return v1alpha3.OperationComplete
	}
}

// Backoff is how long to wait before an attempt is repeated: Base after the
// first, doubled with each, at most Cap.
type Backoff struct{ Base, Cap time.Duration }

// after returns the wait that follows a number of attempts. It never overflows.
func (b Backoff) after(attempts int32) time.Duration {
	wait := b.Base
	for ; attempts > 1 && wait < b.Cap; attempts-- {
		wait *= 2
	}
	return min(wait, b.Cap)
}

// expiresIn returns how long a finished operation is still kept; it is not
// collected where that is not said.
func expiresIn(op *v1alpha3.MachineOperation, now time.Time) (left time.Duration, collected bool) {
	if op.Spec.TTLSecondsAfterFinished == nil || op.Status.CompletedAt == nil {
		return 0, false
	}
	ttl := time.Duration(*op.Spec.TTLSecondsAfterFinished) * time.Second
	return max(0, op.Status.CompletedAt.Add(ttl).Sub(now)), true
}
