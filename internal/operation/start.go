package operation

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// start picks an operation up, claims the hosts of its Machines, and freezes all
// its pairs in one status write. It does nothing else: whatever follows reads
// the pairs back. All that can refuse the operation is checked before anything
// is claimed, and again after it, since it may have changed meanwhile.
func (r *Reconciler) start(ctx context.Context, op *record) (reconcile.Result, error) {
	p, err := r.pick(ctx, op)
	if err != nil || p.leave {
		return reconcile.Result{}, err
	}
	if p.fault.found() {
		return reconcile.Result{}, r.refuseStart(ctx, op, p.machines, p.fault)
	}
	if p.undeliverable != nil {
		return reconcile.Result{}, r.freezeFailed(ctx, op, p)
	}
	if len(p.unmarked) > 0 {
		// In a reconcile of its own, after which the versions are read again:
		// they may have been edited until now.
		return reconcile.Result{RequeueAfter: 1}, r.markDeployed(ctx, p.unmarked)
	}
	if err := r.dryRun(ctx, op, p); err != nil {
		return reconcile.Result{}, err
	}
	claimed, f, err := r.claimAll(ctx, op, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	if f.found() {
		return reconcile.Result{}, r.refuseStart(ctx, op, claimed, f)
	}

	if p, err = r.pick(ctx, op); err != nil {
		return reconcile.Result{}, err
	}
	if p.leave {
		p.fault = fault{resolve.ProviderChanged, "a Machine was deleted or given to another provider while its host was being claimed; create a new operation"}
	}
	if p.fault.found() {
		return reconcile.Result{}, r.refuseStart(ctx, op, claimed, p.fault)
	}
	held := map[string]bool{}
	for i := range claimed {
		held[begin.HostOf(&claimed[i]).ClaimName()] = true
	}
	for i := range p.machines {
		name := begin.HostOf(&p.machines[i]).ClaimName()
		if !held[name] {
			return reconcile.Result{RequeueAfter: 1}, nil // a Machine has come, or names another host: it is claimed first
		}
		delete(held, name)
	}
	switch {
	case len(p.unmarked) > 0:
		return reconcile.Result{RequeueAfter: 1}, nil
	case p.undeliverable != nil:
		return reconcile.Result{}, r.freezeFailed(ctx, op, p)
	}
	if err := r.freeze(ctx, op, p); err != nil {
		return reconcile.Result{}, err
	}
	// Of Machines that are no longer selected.
	for i := range claimed {
		if host := begin.HostOf(&claimed[i]); held[host.ClaimName()] {
			if _, err := r.giveBack(ctx, op, host); err != nil {
				return reconcile.Result{}, err
			}
		}
	}
	return reconcile.Result{}, nil
}

// claimAll claims the hosts of all Machines, in the order of their names: of two
// operations that overlap, one gets all that they share. It returns the Machines
// whose hosts are claimed, all of them unless there is a fault or an error.
func (r *Reconciler) claimAll(ctx context.Context, op *record, p picked) (claimed []v1alpha3.Machine, f fault, err error) {
	for i := range p.machines {
		f, err := r.takeClaim(ctx, op, begin.HostOf(&p.machines[i]))
		if err != nil || f.found() {
			return p.machines[:i], f, err
		}
	}
	return p.machines, fault{}, nil
}

// refuseStart fails an operation that has frozen nothing, and then gives back the
// claims that it has on Machines. The write comes first: it is refused where
// another process has started the operation meanwhile, which then keeps them.
func (r *Reconciler) refuseStart(ctx context.Context, op *record, machines []v1alpha3.Machine, f fault) error {
	if err := r.refuse(ctx, op, f); err != nil {
		return err
	}
	return r.giveAllBack(ctx, op, machines)
}

// giveAllBack gives back the claims on Machines, which are taken in this order:
// the first one that the operation does not have ends it.
func (r *Reconciler) giveAllBack(ctx context.Context, op *record, machines []v1alpha3.Machine) error {
	for i := range machines {
		if had, err := r.giveBack(ctx, op, begin.HostOf(&machines[i])); err != nil || !had {
			return err
		}
	}
	return nil
}

// dryRun writes, without storing it, every field that a status may get from now
// on: a CRD that lacks one refuses the operation before anything is claimed.
func (r *Reconciler) dryRun(ctx context.Context, op *record, p picked) error {
	trial, err := newRecord(op.was)
	if err != nil {
		return err
	}
	r.setFrozen(trial, p)
	now := timestamp(r.Clock.Now())
	first := maps.Clone(p.targets[0].(map[string]any))
	maps.Copy(first, map[string]any{
		"attempts": int64(1), "lastAttemptAt": now, "startedAt": now, "completedAt": now,
		"providerOperation": map[string]any{"provider": first["input"].(map[string]any)["provider"], "operationID": "dry-run"},
	})
	trial.set(append([]any{first}, p.targets[1:]...), "targets")
	trial.set(now, "startedAt")
	trial.set(now, "completedAt")
	return trial.write(ctx, r.Writer, client.DryRunAll)
}

// setFrozen sets all that the freeze write holds.
func (r *Reconciler) setFrozen(op *record, p picked) (message string) {
	message = "image and format are frozen: " + p.all[0].describe()
	if len(p.all) > 1 {
		message = fmt.Sprintf("image and format are frozen for %d Machines", len(p.all))
	}
	op.set(p.targets, "targets")
	op.set(string(v1alpha3.OperationPending), "phase")
	op.set(bounded(message), "message")
	if len(p.all) == 1 {
		op.set(p.all[0].machine.Generation, "observedMachineGeneration")
	}
	op.setCondition(v1alpha3.ConditionFrozen, metav1.ConditionTrue, "PairFrozen", message, r.Clock.Now())
	return message
}

func (r *Reconciler) freeze(ctx context.Context, op *record, p picked) error {
	message := r.setFrozen(op, p)
	if err := op.write(ctx, r.Writer); err != nil {
		return err
	}
	r.announceFrozen(ctx, op, p, message)
	return nil
}

// freezeFailed records the pairs of an operation that cannot be delivered, and
// that it has failed, in one write. No claim is kept and nobody is called: one
// pair that cannot be delivered spares all hosts.
func (r *Reconciler) freezeFailed(ctx context.Context, op *record, p picked) error {
	message := r.setFrozen(op, p)
	name := p.undeliverable.machine.Name
	one := faultOf(begin.UndeliverableFault(name, p.undeliverable.result.Pair, 1))
	for i, target := range p.all {
		f := one
		if resolve.DeliveryFault(target.result.Pair) == "" {
			f = faultOf(begin.SparedFault(name))
		}
		fields := p.targets[i].(map[string]any)
		fields["phase"], fields["stage"] = string(v1alpha3.OperationFailed), string(f.reason)
		fields["message"], fields["completedAt"] = bounded(f.message), timestamp(r.Clock.Now())
	}
	op.set(p.targets, "targets")
	reason := faultOf(begin.UndeliverableFault(name, p.undeliverable.result.Pair, len(p.all)))
	r.setFailed(op, reason)
	if err := op.write(ctx, r.Writer); err != nil {
		return err
	}
	r.announceFrozen(ctx, op, p, message)
	r.announceRefused(ctx, op, reason)
	return r.giveAllBack(ctx, op, p.machines)
}

func (r *Reconciler) announceFrozen(ctx context.Context, op *record, p picked, message string) {
	for _, one := range p.all {
		resolutions.WithLabelValues(string(one.result.ImageSource), string(one.result.FormatSource)).Inc()
	}
	logf.FromContext(ctx).Info("frozen", "targets", len(p.all), "message", message)
	r.event(op.was, nil, corev1.EventTypeNormal, "PairFrozen", "Freeze", message)
}

func (r *Reconciler) markDeployed(ctx context.Context, versions []*v1alpha3.MachineConfigurationVersion) error {
	for _, version := range versions {
		patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"deployed":true}}`, version.ResourceVersion)
		if err := r.Writer.Status().Patch(ctx, version.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), strictly); err != nil {
			return err
		}
	}
	return nil
}

// refuseOldSchema fails an operation whose record the CRD would not keep.
func (r *Reconciler) refuseOldSchema(ctx context.Context, op *record) error {
	fresh, err := newRecord(op.was)
	if err != nil {
		return err
	}
	return r.refuse(ctx, fresh, fault{begin.SchemaTooOld,
		"the CRDs lack fields that hostformat records what it does in (status.targets[].input of MachineOperation, status.deployed of MachineConfigurationVersion); upgrade the CRDs first, then create a new operation"})
}
