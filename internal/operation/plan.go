package operation

import (
	"fmt"
	"time"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
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

// next plans one target from its record, never from its phase alone: an attempt
// counts once it is recorded, a call once it is answered.
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

// outcome is the phase that the targets give their operation.
func outcome(targets []v1alpha3.OperationTarget) v1alpha3.OperationPhase {
	moved, failed, open := false, false, false
	for _, t := range targets {
		moved = moved || t.Begun() || t.Phase.Finished()
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

// firstFailed returns the first target that failed by itself. If there is none, it
// returns the first that was halted, or nil.
func firstFailed(targets []v1alpha3.OperationTarget) (first *v1alpha3.OperationTarget) {
	for i := range targets {
		if targets[i].Phase != v1alpha3.OperationFailed {
			continue
		}
		if targets[i].Stage != string(resolve.Halted) {
			return &targets[i]
		}
		if first == nil {
			first = &targets[i]
		}
	}
	return first
}

// summary describes the progress of all targets in one sentence.
func summary(targets []v1alpha3.OperationTarget) string {
	if len(targets) == 1 {
		return targets[0].Message
	}
	replaced, failed, halted := 0, 0, 0
	for _, t := range targets {
		switch {
		case t.Phase == v1alpha3.OperationComplete:
			replaced++
		case t.Phase == v1alpha3.OperationFailed && t.Stage == string(resolve.Halted):
			halted++
		case t.Phase == v1alpha3.OperationFailed:
			failed++
		}
	}
	text := fmt.Sprintf("%d of %d hosts were replaced", replaced, len(targets))
	if first := firstFailed(targets); first != nil && failed > 0 {
		text += fmt.Sprintf("; %d failed, the first for Machine %q: %s", failed, first.MachineRef, resolve.Cut(first.Message, 200))
	}
	if halted > 0 {
		text += fmt.Sprintf("; %d were not begun because of that (%s)", halted, resolve.Halted)
	}
	return text
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

// expiresIn returns how long a finished operation is still kept. Without a TTL it
// is not collected.
func expiresIn(op *v1alpha3.MachineOperation, now time.Time) (left time.Duration, collected bool) {
	if op.Spec.TTLSecondsAfterFinished == nil || op.Status.CompletedAt == nil {
		return 0, false
	}
	ttl := time.Duration(*op.Spec.TTLSecondsAfterFinished) * time.Second
	return max(0, op.Status.CompletedAt.Add(ttl).Sub(now)), true
}
