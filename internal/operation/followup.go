package operation

import (
	"context"
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// lookUp asks whether an attempt whose answer was lost had been accepted. It
// tells whether it is to be made again now, or else when to look again, 0 for
// not at all.
func (r *Reconciler) lookUp(ctx context.Context, op *record, index int) (again bool, after time.Duration) {
	target := op.Status.Targets[index]
	name := ""
	if target.Input != nil {
		name = target.Input.Provider
	}
	if name == "" { // a legacy snapshot does not say
		machine, err := r.readMachine(ctx, target.MachineRef)
		if apierrors.IsNotFound(err) {
			r.fail(op, index, fault{resolve.MachineNotFound, "the Machine does not exist any more, and whether its host was replaced is not known"})
			return false, 0
		}
		if err != nil {
			logf.FromContext(ctx).Error(err, "the Machine cannot be read", "machine", target.MachineRef)
			return false, r.Backoff.after(target.Attempts)
		}
		name, _ = resolve.Provider(machine)
	}
	provider := r.Providers[name]
	if provider == nil {
		r.fail(op, index, fault{resolve.ProviderChanged, fmt.Sprintf("provider %q, which was called, is not registered here", name)})
		return false, 0
	}
	id, found, err := provider.Lookup(ctx, keyFor(op.UID, target.MachineRef))
	switch {
	case err != nil && isPermanent(err):
		r.fail(op, index, fault{begin.ProviderFailed, err.Error()})
		return false, 0
	case err != nil:
		// What the error says may differ each time, and a status that changes
		// each time would bring us back at once.
		logf.FromContext(ctx).Error(err, "the provider does not say whether it accepted", "machine", target.MachineRef)
		r.say(op, index, fmt.Sprintf("the provider does not say whether it accepted attempt %d; it is asked again", target.Attempts))
		return false, r.Backoff.after(target.Attempts)
	case found:
		r.accept(op, index, name, id)
		return false, r.PollInterval
	}
	wait := r.untilNextAttempt(target)
	return wait == 0, wait
}

// poll asks how far a replacement has come, and returns when to ask again, 0
// for not at all.
func (r *Reconciler) poll(ctx context.Context, op *record, index int) time.Duration {
	target := op.Status.Targets[index]
	provider := r.Providers[target.ProviderOperation.Provider]
	if provider == nil {
		r.say(op, index, fmt.Sprintf("provider %q, which replaces the host, is not registered here", target.ProviderOperation.Provider))
		return 0
	}
	progress, err := provider.Poll(ctx, target.ProviderOperation.OperationID)
	switch {
	case err != nil && isPermanent(err):
		r.fail(op, index, fault{begin.ProviderFailed, err.Error()})
		return 0
	case err != nil:
		logf.FromContext(ctx).Error(err, "the provider does not say how far it has come", "machine", target.MachineRef)
		return max(r.PollInterval, r.Backoff.Cap/10)
	case progress.State == Succeeded:
		op.setTarget(index, map[string]any{
			"phase": string(v1alpha3.OperationComplete), "stage": stageDone,
			"message": "the host was replaced", "completedAt": timestamp(r.Clock.Now()),
		})
		return 0
	case progress.State == Failed:
		r.fail(op, index, fault{begin.ProviderFailed, "the provider reports: " + progress.Message})
		return 0
	}
	return r.PollInterval
}

// settle gives the operation the phase that its targets add up to, and a message.
// It never goes back to Pending.
func (r *Reconciler) settle(op *record) {
	now := r.Clock.Now()
	phase := outcome(op.Status.Targets)
	if phase == v1alpha3.OperationPending && op.Status.Phase == v1alpha3.OperationInProgress {
		phase = v1alpha3.OperationInProgress
	}
	op.set(string(phase), "phase")
	if phase != v1alpha3.OperationPending && !op.has("startedAt") {
		op.set(timestamp(now), "startedAt")
	}
	parameters, unreadable := begin.ReadParameters(op.Spec.Parameters)
	message := summary(op.Status.Targets)
	switch {
	case phase.Finished():
	case unreadable != "":
		message += "; no further host is begun until this is corrected: " + unreadable
	case parameters.Pause:
		message += "; paused by spec.parameters." + begin.PauseParameter
	}
	op.set(bounded(message), "message")
	if !phase.Finished() {
		return
	}
	if !op.has("completedAt") {
		op.set(timestamp(now), "completedAt")
	}
	status, reason := metav1.ConditionTrue, "Replaced"
	if failed := firstFailed(op.Status.Targets); failed != nil {
		status, reason = metav1.ConditionFalse, reasonOf(failed.Stage)
	}
	op.setCondition(v1alpha3.ConditionComplete, status, reason, message, now)
}

// reasonOf makes a reason of the stage that a target failed at. One that others
// wrote may not be fit, and the whole write would be refused for it.
func reasonOf(stage string) string {
	if !legalReason.MatchString(stage) {
		return "TargetFailed"
	}
	return stage
}

// legalReason is what the API asks of the reason of a condition.
var legalReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// announce tells of an operation that has finished with the last write.
func (r *Reconciler) announce(op *record) {
	if !op.Status.Phase.Finished() {
		return
	}
	kind := corev1.EventTypeNormal
	if op.Status.Phase == v1alpha3.OperationFailed {
		kind = corev1.EventTypeWarning
	}
	for _, target := range op.Status.Targets {
		r.event(machineOf(target), op.was, kind, "HostReplace"+string(target.Phase), "Replace", fmt.Sprintf("MachineOperation %s: %s", op.Name, target.Message))
	}
	r.event(op.was, nil, kind, "HostReplace"+string(op.Status.Phase), "Replace", op.Status.Message)
}

// mourn takes the answers of calls that could not be recorded. Where the
// operation can still be written that is done anew; where it is gone, or over,
// they are told where people will look for them: on the Machines.
func (r *Reconciler) mourn(ctx context.Context, op *record, calls []call, writeErr error) error {
	current, err := r.read(ctx, op.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return writeErr
	}
	if err == nil && current.UID == op.UID && current.DeletionTimestamp == nil && !current.Status.Phase.Finished() {
		return writeErr
	}
	for _, c := range calls {
		target := op.Status.Targets[c.index]
		logf.FromContext(ctx).Info("the operation ended during the call", "machine", target.MachineRef, "stage", target.Stage, "message", target.Message)
		r.event(machineOf(target), nil, corev1.EventTypeWarning, "OperationEnded", "Replace",
			fmt.Sprintf("MachineOperation %s was deleted or ended by others during its call: stage %s, %s", op.Name, target.Stage, target.Message))
	}
	return nil
}

// machineOf is the Machine of a target, as an Event refers to it.
func machineOf(target v1alpha3.OperationTarget) *v1alpha3.Machine {
	machine := &v1alpha3.Machine{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha3.GroupVersion.String(), Kind: "Machine"}}
	machine.Name = target.MachineRef
	if target.Input != nil {
		machine.UID = target.Input.MachineUID
	}
	return machine
}
