package operation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// lookUp asks whether an attempt whose answer was lost had been accepted.
func (r *Reconciler) lookUp(ctx context.Context, op *record, index int) (accepted bool, err error) {
	target := op.Status.Targets[index]
	name := ""
	if target.Input != nil {
		name = target.Input.Provider
	}
	if name == "" { // a legacy snapshot does not say
		machine, err := r.readMachine(ctx, target.MachineRef)
		if err != nil {
			return false, err
		}
		name, _ = providerOf(machine)
	}
	provider := r.Providers[name]
	if provider == nil {
		return false, fmt.Errorf("provider %q is not registered here", name)
	}
	id, found, err := provider.Lookup(ctx, keyFor(op.UID, target.MachineRef))
	if err == nil && found {
		r.accept(op, index, name, id)
	}
	return found, err
}

// poll asks how far a replacement has come, and tells whether it has finished.
func (r *Reconciler) poll(ctx context.Context, op *record, index int) (finished bool) {
	target := op.Status.Targets[index]
	provider := r.Providers[target.ProviderOperation.Provider]
	if provider == nil {
		return false
	}
	progress, err := provider.Poll(ctx, target.ProviderOperation.OperationID)
	switch {
	case err != nil && isPermanent(err):
		r.fail(op, index, "ProviderFailed", err.Error())
		return true
	case err != nil:
		logf.FromContext(ctx).Error(err, "the provider does not say how far it has come", "machine", target.MachineRef)
		return false
	case progress.State == Succeeded:
		op.setTarget(index, map[string]any{
			"phase": string(v1alpha3.OperationComplete), "stage": stageDone,
			"message": "the host was replaced", "completedAt": timestamp(r.Clock.Now()),
		})
		return true
	case progress.State == Failed:
		r.fail(op, index, "ProviderFailed", "the provider reports: "+progress.Message)
		return true
	}
	return false
}

// settle gives the operation the phase that its targets add up to.
func (r *Reconciler) settle(op *record) {
	now := r.Clock.Now()
	phase := outcome(op.Status.Targets)
	op.set(string(phase), "phase")
	if phase != v1alpha3.OperationPending && !op.has("startedAt") {
		op.set(timestamp(now), "startedAt")
	}
	if !final(phase) {
		return
	}
	if !op.has("completedAt") {
		op.set(timestamp(now), "completedAt")
	}
	reason, message, failed := "Replaced", "", 0
	for _, target := range op.Status.Targets {
		message = target.Message
		if target.Phase == v1alpha3.OperationFailed {
			if failed++; failed == 1 {
				reason = target.Stage
			}
		}
	}
	if n := len(op.Status.Targets); n > 1 {
		message = fmt.Sprintf("%d of %d hosts were replaced; the targets say more", n-failed, n)
	}
	status := metav1.ConditionTrue
	if failed > 0 {
		status = metav1.ConditionFalse
	}
	op.set(bounded(message), "message")
	op.setCondition(ConditionComplete, status, reason, message, now)
}

// announce tells of an operation that has finished with the last write.
func (r *Reconciler) announce(op *record) {
	if !final(op.Status.Phase) {
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

// mourn records the outcome of calls whose operation was deleted meanwhile,
// where people will look for it.
func (r *Reconciler) mourn(ctx context.Context, op *record, calls []call) {
	for _, c := range calls {
		target := op.Status.Targets[c.index]
		message := fmt.Sprintf("MachineOperation %s was deleted while the host was being replaced: stage %s, %s", op.Name, target.Stage, target.Message)
		logf.FromContext(ctx).Info("the operation was deleted during the call", "machine", target.MachineRef, "stage", target.Stage)
		r.event(machineOf(target), nil, corev1.EventTypeWarning, "OperationDeleted", "Replace", message)
	}
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
