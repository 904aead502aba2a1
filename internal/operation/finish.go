package operation

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/strict"
)

// fail ends a target that is not replaced.
func (r *Reconciler) fail(op *record, index int, f resolve.Fault) {
	r.end(op, index, v1alpha3.OperationFailed, string(f.Reason), f.Message)
}

// complete ends a target whose host was replaced.
func (r *Reconciler) complete(op *record, index int) {
	r.end(op, index, v1alpha3.OperationComplete, stageDone, "the host was replaced")
}

func (r *Reconciler) end(op *record, index int, phase v1alpha3.OperationPhase, stage, message string) {
	target := &op.Status.Targets[index]
	target.Phase, target.Stage, target.CompletedAt = phase, stage, timestamp(r.Clock.Now())
	op.say(index, message)
}

// refuse fails an operation as a whole.
func (r *Reconciler) refuse(ctx context.Context, op *record, f resolve.Fault) error {
	r.setFailed(op, f)
	if err := op.write(ctx, r.Writer); err != nil {
		if strict.SchemaTooOld(err) {
			logf.FromContext(ctx).Info("refused, but the CRD cannot store that", "reason", f.Reason, "message", f.Message)
			return nil
		}
		return err
	}
	r.announceRefused(ctx, op, f)
	return nil
}

// setFailed sets the status of an operation that fails as a whole.
func (r *Reconciler) setFailed(op *record, f resolve.Fault) {
	now := r.Clock.Now()
	for i := range op.Status.Targets {
		if target := op.Status.Targets[i]; !target.Begun() && !target.Phase.Finished() {
			r.fail(op, i, f)
		}
	}
	op.Status.Phase, op.Status.Message, op.Status.CompletedAt = v1alpha3.OperationFailed, bounded(f.Message), timestamp(now)
	if len(op.Status.Targets) == 0 {
		op.setCondition(v1alpha3.ConditionFrozen, metav1.ConditionFalse, f.Reason, f.Message, now)
	}
	op.setCondition(v1alpha3.ConditionComplete, metav1.ConditionFalse, f.Reason, f.Message, now)
}

// save writes what has changed, with the phase that the targets add up to. If a
// target fails with that write and no attempt at it was made, the claim on its
// host is given back: the name of the operation may then be used for that host
// again. The write comes first: it is a conflict if another process has made an
// attempt meanwhile.
func (r *Reconciler) save(ctx context.Context, op *record) error {
	var failed []v1alpha3.OperationTarget
	for i, target := range op.Status.Targets {
		if !op.was.Targets[i].Phase.Finished() && target.Phase == v1alpha3.OperationFailed && !target.Begun() {
			failed = append(failed, target)
		}
	}
	r.settle(op)
	if err := op.write(ctx, r.Writer); err != nil {
		return err
	}
	r.release(ctx, op, failed)
	return nil
}

// release gives back the claims on the hosts of targets that have failed without
// an attempt, unless another target has used the claim, or may. An error is only
// logged: the operation cannot use the claim any more, and other operations may take
// it. Only its name counts as used.
func (r *Reconciler) release(ctx context.Context, op *record, failed []v1alpha3.OperationTarget) {
	if len(failed) == 0 {
		return
	}
	used := map[string]bool{} // names of Machines and of claims
	for _, target := range op.Status.Targets {
		if target.Begun() || !target.Phase.Finished() {
			used[target.MachineRef] = true
			if host, pinned := resolve.PinnedHost(target); pinned {
				used[host.ClaimName()] = true
			}
		}
	}
	for _, target := range failed {
		if used[target.MachineRef] {
			continue
		}
		log := logf.FromContext(ctx).WithValues("machine", target.MachineRef)
		host, pinned := resolve.PinnedHost(target)
		if !pinned { // a legacy snapshot was claimed for the Machine as it is
			machine, err := r.readMachine(ctx, target.MachineRef)
			if err != nil {
				log.V(1).Info("the claim on the host is not given back, since its Machine cannot be read")
				continue
			}
			host = resolve.HostOf(machine)
		}
		if used[host.ClaimName()] {
			continue
		}
		if _, err := r.giveBack(ctx, op, host); err != nil {
			log.Error(err, "the claim on the host could not be given back")
		}
	}
}

// settle gives the operation the phase that its targets add up to, and a message.
// It never returns to Pending.
func (r *Reconciler) settle(op *record) {
	now := r.Clock.Now()
	phase := outcome(op.Status.Targets)
	if phase == v1alpha3.OperationPending && op.Status.Phase == v1alpha3.OperationInProgress {
		phase = v1alpha3.OperationInProgress
	}
	op.Status.Phase = phase
	if phase != v1alpha3.OperationPending && op.Status.StartedAt == nil && !op.had("startedAt") {
		op.Status.StartedAt = timestamp(now)
	}
	parameters, unreadable := resolve.ReadParameters(op.Spec.Parameters)
	message := summary(op.Status.Targets)
	switch {
	case phase.Finished():
	case unreadable.Found():
		message += "; no further host is begun until this is corrected: " + unreadable.Message
	case parameters.Pause:
		message += "; paused by spec.parameters." + resolve.PauseParameter
	}
	op.Status.Message = bounded(message)
	if !phase.Finished() {
		return
	}
	if op.Status.CompletedAt == nil && !op.had("completedAt") {
		op.Status.CompletedAt = timestamp(now)
	}
	status, reason := metav1.ConditionTrue, resolve.Replaced
	if failed := firstFailed(op.Status.Targets); failed != nil {
		status, reason = metav1.ConditionFalse, reasonOf(failed.Stage)
	}
	op.setCondition(v1alpha3.ConditionComplete, status, reason, message, now)
}

// reasonOf returns the stage that a target failed at as a reason. Other clients
// may have written one that the API does not accept as the reason of a condition,
// which would reject the whole write.
func reasonOf(stage string) resolve.Reason {
	if !legalReason.MatchString(stage) {
		return resolve.TargetFailed
	}
	return resolve.Reason(stage)
}

// legalReason is the pattern of the reason of a metav1.Condition.
var legalReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// announce emits Events for an operation that has finished with the last write.
func (r *Reconciler) announce(op *record) {
	if !op.Status.Phase.Finished() {
		return
	}
	kind := corev1.EventTypeNormal
	if op.Status.Phase == v1alpha3.OperationFailed {
		kind = corev1.EventTypeWarning
	}
	for _, target := range op.Status.Targets {
		r.event(machineOf(target), op.raw, kind, eventReason(target.Phase), "Replace", fmt.Sprintf("MachineOperation %s: %s", op.Name, target.Message))
	}
	r.event(op.raw, nil, kind, eventReason(op.Status.Phase), "Replace", op.Status.Message)
}

func eventReason(phase v1alpha3.OperationPhase) resolve.Reason {
	if phase == v1alpha3.OperationFailed {
		return resolve.HostReplaceFailed
	}
	return resolve.HostReplaceComplete
}

func (r *Reconciler) announceRefused(ctx context.Context, op *record, f resolve.Fault) {
	logf.FromContext(ctx).Info("refused", "reason", f.Reason, "message", f.Message)
	r.event(op.raw, nil, corev1.EventTypeWarning, f.Reason, "Refuse", f.Message)
}

// machineOf returns the Machine of a target as an Event refers to it.
func machineOf(target v1alpha3.OperationTarget) *v1alpha3.Machine {
	machine := &v1alpha3.Machine{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha3.GroupVersion.String(), Kind: "Machine"}}
	machine.Name = target.MachineRef
	if target.Input != nil {
		machine.UID = target.Input.MachineUID
	}
	return machine
}

// event emits an Event.
func (r *Reconciler) event(about, related runtime.Object, kind string, reason resolve.Reason, action, message string) {
	r.Recorder.Eventf(about, related, kind, string(reason), action, "%s", bounded(message))
}

// expire deletes a finished operation of ours when its TTL is over, if it has
// attempted something. An operation that failed without a call stays: a tool that
// creates it again and again would otherwise make it run as soon as it can.
func (r *Reconciler) expire(ctx context.Context, finished *unstructured.Unstructured) (reconcile.Result, error) {
	op, err := newRecord(finished)
	if err != nil {
		return reconcile.Result{}, err
	}
	left, collected := expiresIn(op.MachineOperation, r.Clock.Now())
	if !collected {
		return reconcile.Result{}, nil
	}
	if left > 0 {
		// At most a day, to notice a clock that is set meanwhile.
		return reconcile.Result{RequeueAfter: min(left, 24*time.Hour)}, nil
	}
	// The stub of a finished operation in the cache does not say what it attempted.
	op, err = r.read(ctx, op.Name)
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if op.UID != finished.GetUID() || !op.Status.Phase.Finished() || op.DeletionTimestamp != nil || !ours(op.raw) ||
		!slices.ContainsFunc(op.Status.Targets, v1alpha3.OperationTarget.Begun) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(r.Writer.Delete(ctx, op.raw,
		client.Preconditions{UID: &op.UID, ResourceVersion: &op.ResourceVersion}))
}
