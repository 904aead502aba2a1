package operation

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// recordAnswers puts the answers that have come into the status that is about to be
// written.
func (r *Reconciler) recordAnswers(op *record, answers map[string]*answer) {
	seen := map[string]bool{}
	for i, target := range op.Status.Targets {
		got := answers[target.MachineRef]
		if got == nil || seen[target.MachineRef] || target.Phase.Finished() {
			continue
		}
		seen[target.MachineRef] = true
		r.recordAnswer(op, i, *got)
		r.Calls.change(op.UID, target.MachineRef, func(a *attention) { r.learn(a, *got) })
	}
}

func (r *Reconciler) recordAnswer(op *record, index int, got answer) {
	target := &op.Status.Targets[index]
	if got.legacy {
		op.setCondition(v1alpha3.ConditionFrozen, metav1.ConditionFalse, resolve.LegacySnapshot,
			"the snapshot predates the format field: its format is resolved again at each attempt and is not guaranteed to stay", r.Clock.Now())
	}
	if got.withdrawn != nil && target.Attempts == got.target.Attempts {
		*target = *got.withdrawn
	}
	switch {
	case got.fault.Found():
		r.fail(op, index, got.fault)
	case got.done:
		r.complete(op, index)
	case got.accepts.OperationID != "":
		op.accept(index, got.accepts.Provider, got.accepts.OperationID)
	case got.method == polling && got.trouble.reason == "":
		op.say(index, replacingMessage)
	}
}

// learn keeps what an answer says about the next call.
func (r *Reconciler) learn(a *attention, got answer) {
	now := r.Clock.Now()
	switch {
	case got.trouble.reason != "":
		if a.trouble.reason == "" {
			a.trouble.since = now
		}
		if a.trouble.text != got.trouble.text {
			a.trouble.told = time.Time{} // said at once
		}
		a.trouble.reason, a.trouble.text, a.trouble.err = got.trouble.reason, got.trouble.text, got.trouble.err
		a.failures++
		a.next = wait{now, r.Backoff.after(max(got.target.Attempts, a.failures))}
		if got.method == polling {
			a.next.length = max(r.PollInterval, r.Backoff.Cap/10)
		}
	case got.notFound:
		a.notFound = got.target.Attempts
		a.next = wait{now, r.untilNextAttempt(got.target)}
		a.trouble, a.failures = trouble{}, 0
	default:
		a.next = wait{now, r.PollInterval}
		if got.accepts.OperationID != "" {
			a.next = wait{} // what was accepted may be done already
		}
		a.trouble, a.failures = trouble{}, 0
	}
}

// reportEnded reports the answers that an operation which has ended cannot record any
// more, as Events on the Machines, and forgets it. An unfinished operation of the same
// name, if there is one, is given by its UID.
func (r *Reconciler) reportEnded(ctx context.Context, name string, unfinished types.UID) {
	for _, got := range r.Calls.leftover(name, unfinished) {
		if !got.called {
			continue
		}
		stage, message := stageCalling, got.trouble.text
		switch {
		case got.fault.Found():
			stage, message = string(got.fault.Reason), got.fault.Message
		case got.accepts.OperationID != "":
			stage, message = stageReplacing, replacingMessage
		}
		logf.FromContext(ctx).Info("the operation ended during the call", "machine", got.target.MachineRef, "stage", stage, "message", message)
		r.event(machineOf(got.target), nil, corev1.EventTypeWarning, resolve.OperationEnded, "Replace",
			fmt.Sprintf("MachineOperation %s was deleted or finished by another client during its call: stage %s, %s", name, stage, message))
	}
}
