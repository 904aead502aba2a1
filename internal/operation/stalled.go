package operation

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

const (
	// stalledAfter is how long a target may be held up before its operation says so.
	stalledAfter = 5 * time.Minute
	// retellAfter is how long the message of a target stays, though the provider has
	// given another error since: each change of it is a write.
	retellAfter = time.Minute
)

// reportTrouble puts what holds up the targets into their messages and into the
// condition Stalled. waiting has the pool that a target waits for, by Machine. It
// returns when to look again, 0 for not at all.
func (r *Reconciler) reportTrouble(op *record, waiting map[string]poolName) (requeueAfter time.Duration) {
	now := r.Clock.Now()
	stalled, unheard := 0, false
	var first trouble
	firstMachine := ""
	for i := range op.Status.Targets {
		target := op.Status.Targets[i]
		if target.Phase.Finished() {
			continue
		}
		known := r.Calls.of(op.UID, target.MachineRef)
		unheard = unheard || !known.heard && target.Begun()
		t := r.troubleOf(target, known, waiting[target.MachineRef])
		if t.reason == "" {
			continue
		}
		held := now.Sub(t.since)
		if held < stalledAfter {
			requeueAfter = earliest(requeueAfter, stalledAfter-held)
		}
		if !t.silent || held >= stalledAfter {
			if retold := now.Sub(t.told); retold >= retellAfter || retold < 0 {
				message := fmt.Sprintf("%s (since %s)", t.text, t.since.UTC().Format(time.RFC3339))
				if t.err != "" {
					message += ": " + t.err
				}
				op.say(i, message)
				r.Calls.change(op.UID, target.MachineRef, func(a *attention) { a.trouble.told = now })
			} else {
				requeueAfter = earliest(requeueAfter, retellAfter-retold)
			}
		}
		if held < stalledAfter {
			continue
		}
		if stalled++; stalled == 1 {
			first, firstMachine = t, target.MachineRef
		}
	}
	switch {
	case stalled > 0:
		message := fmt.Sprintf("Machine %q: %s", firstMachine, first.text)
		if stalled > 1 {
			message = fmt.Sprintf("%d targets, the first is %s", stalled, message)
		}
		op.setCondition(v1alpha3.ConditionStalled, metav1.ConditionTrue, first.reason, message, now)
	case op.stalled() && !unheard: // a new process does not know yet
		op.setCondition(v1alpha3.ConditionStalled, metav1.ConditionFalse, resolve.Recovered, "all targets continue", now)
	}
	return requeueAfter
}

// troubleOf returns what holds up a target.
func (r *Reconciler) troubleOf(target v1alpha3.OperationTarget, known attention, waitsFor poolName) trouble {
	held := trouble{told: known.trouble.told, silent: true}
	switch o := known.outstanding; {
	case known.trouble.reason != "":
		return known.trouble
	case o != nil:
		held.reason, held.since = resolve.ProviderNotAnswering, o.since
		switch o.method {
		case replacing:
			held.text = fmt.Sprintf("attempt %d was sent to the provider, which has not answered", target.Attempts)
		case lookingUp:
			held.text = fmt.Sprintf("the provider was asked whether it accepted attempt %d, and has not answered", target.Attempts)
		case polling:
			held.text = "the provider was asked for the progress of the replacement, and has not answered"
		}
	case waitsFor != poolName{}:
		if since := r.Calls.full(waitsFor); !since.IsZero() {
			held.reason, held.since = resolve.ProviderBusy, since
			held.text = fmt.Sprintf("waits until provider %q answers one of the calls that are outstanding, of which there may be %d (--concurrent-provider-calls)",
				waitsFor.provider, r.Calls.options.PerProvider)
		}
	}
	return held
}

// announceStalled emits an Event if the last write has changed whether an operation is
// stalled.
func (r *Reconciler) announceStalled(op *record, was bool) {
	condition := meta.FindStatusCondition(op.Status.Conditions, v1alpha3.ConditionStalled)
	switch {
	case condition == nil || op.stalled() == was:
	case op.stalled():
		r.event(op.raw, nil, corev1.EventTypeWarning, resolve.Reason(condition.Reason), "Stall", condition.Message)
	default:
		r.event(op.raw, nil, corev1.EventTypeNormal, resolve.Recovered, "Stall", condition.Message)
	}
}
