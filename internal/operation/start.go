package operation

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// start claims the hosts of the Machines of an operation, and freezes all its pairs
// in one status write. It does nothing else: later steps read the pairs back.
// Everything that can refuse the operation is checked before anything is claimed,
// and again after it, since it may have changed meanwhile.
func (r *Reconciler) start(ctx context.Context, op *record) (reconcile.Result, error) {
	p, err := r.pick(ctx, op)
	if err != nil || p.leave {
		return reconcile.Result{}, err
	}
	if p.fault.Found() {
		return reconcile.Result{}, r.refuseStart(ctx, op, p, p.candidates)
	}
	if len(p.unmarked) > 0 {
		// In a reconcile of its own. Afterwards, the versions are read again: they may
		// have been edited until now.
		if err := r.markDeployed(ctx, p.unmarked); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, errChanged
	}
	if err := r.dryRun(ctx, op, p); err != nil {
		return reconcile.Result{}, err
	}
	claimed, f, err := r.claimAll(ctx, op, p.candidates)
	if err != nil {
		return reconcile.Result{}, err
	}
	if f.Found() {
		return reconcile.Result{}, r.refuseStart(ctx, op, picked{fault: f}, claimed)
	}

	if p, err = r.pick(ctx, op); err != nil {
		return reconcile.Result{}, err
	}
	if p.leave {
		p.fault = resolve.Fault{Reason: resolve.ProviderChanged, Message: "a Machine was deleted or given to another provider while its host was being claimed; create a new operation"}
	}
	held := map[string]bool{}
	for _, c := range claimed {
		held[resolve.HostOf(c.Machine).ClaimName()] = true
	}
	if p.fault.Found() && p.spared == nil {
		return reconcile.Result{}, r.refuseStart(ctx, op, p, claimed)
	}
	for _, c := range p.candidates {
		name := resolve.HostOf(c.Machine).ClaimName()
		if !held[name] {
			return reconcile.Result{}, errChanged // a Machine is new, or names another host: claim that first
		}
		delete(held, name)
	}
	switch {
	case len(p.unmarked) > 0:
		return reconcile.Result{}, errChanged
	case p.fault.Found():
		return reconcile.Result{}, r.refuseStart(ctx, op, p, claimed)
	}
	if err := r.freeze(ctx, op, p); err != nil {
		return reconcile.Result{}, err
	}
	// Claims on the hosts of Machines that are no longer selected.
	for _, c := range claimed {
		if host := resolve.HostOf(c.Machine); held[host.ClaimName()] {
			if _, err := r.giveBack(ctx, op, host); err != nil {
				return reconcile.Result{}, err
			}
		}
	}
	return reconcile.Result{}, nil
}

// errChanged says that what was read has changed meanwhile, and is read again. The wait
// before that grows, since something else may change it all the time.
var errChanged = errors.New("an object has changed meanwhile")

// claimAll claims the hosts of all candidates, in the order of their names: of two
// operations that overlap, one gets all that they share. It returns the candidates
// whose hosts are claimed, all of them unless there is a fault or an error.
func (r *Reconciler) claimAll(ctx context.Context, op *record, candidates []resolve.Candidate) (claimed []resolve.Candidate, f resolve.Fault, err error) {
	for i, c := range candidates {
		if f, err := r.takeClaim(ctx, op, resolve.HostOf(c.Machine)); err != nil || f.Found() {
			return candidates[:i], f, err
		}
	}
	return candidates, resolve.Fault{}, nil
}

// refuseStart fails an operation that has frozen nothing, and then gives back the
// claims that it has on the hosts of candidates. The write comes first: it is a
// conflict if another process has started the operation meanwhile, which then
// keeps them.
func (r *Reconciler) refuseStart(ctx context.Context, op *record, p picked, candidates []resolve.Candidate) error {
	var err error
	if p.spared != nil {
		err = r.freezeFailed(ctx, op, p)
	} else {
		err = r.refuse(ctx, op, p.fault)
	}
	if err != nil {
		return err
	}
	// Claims are taken in this order: the first one that is missing is the end.
	for _, c := range candidates {
		if had, err := r.giveBack(ctx, op, resolve.HostOf(c.Machine)); err != nil || !had {
			return err
		}
	}
	return nil
}

// dryRun writes, without storing it, every field that a status may get from now
// on: a CRD that lacks one refuses the operation before anything is claimed.
func (r *Reconciler) dryRun(ctx context.Context, op *record, p picked) error {
	trial, err := newRecord(op.raw)
	if err != nil {
		return err
	}
	r.setFrozen(trial, p)
	now := timestamp(r.Clock.Now())
	first := &trial.Status.Targets[0]
	first.Attempts, first.LastAttemptAt, first.StartedAt, first.CompletedAt = 1, now, now, now
	first.ProviderOperation = &v1alpha3.ProviderOperation{Provider: first.Input.Provider, OperationID: "dry-run"}
	trial.Status.StartedAt, trial.Status.CompletedAt = now, now
	return trial.write(ctx, r.Writer, client.DryRunAll)
}

// setFrozen puts all that the freezing write holds into the status.
func (r *Reconciler) setFrozen(op *record, p picked) (message string) {
	message = "image and format are frozen: " + p.candidates[0].Result.String()
	if len(p.candidates) > 1 {
		message = fmt.Sprintf("image and format are frozen for %d Machines", len(p.candidates))
	}
	op.Status.Targets = slices.Clone(p.targets)
	op.Status.Phase, op.Status.Message = v1alpha3.OperationPending, bounded(message)
	if len(p.candidates) == 1 {
		op.Status.ObservedMachineGeneration = p.candidates[0].Machine.Generation
	}
	op.setCondition(v1alpha3.ConditionFrozen, metav1.ConditionTrue, resolve.PairFrozen, message, r.Clock.Now())
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
// that it has failed, in one write. No provider is called: one pair that cannot be
// delivered spares all hosts.
func (r *Reconciler) freezeFailed(ctx context.Context, op *record, p picked) error {
	message := r.setFrozen(op, p)
	for i, fault := range p.spared {
		r.fail(op, i, fault)
	}
	r.setFailed(op, p.fault)
	if err := op.write(ctx, r.Writer); err != nil {
		return err
	}
	r.announceFrozen(ctx, op, p, message)
	r.announceRefused(ctx, op, p.fault)
	return nil
}

func (r *Reconciler) announceFrozen(ctx context.Context, op *record, p picked, message string) {
	for _, c := range p.candidates {
		resolutions.WithLabelValues(string(c.Result.ImageSource), string(c.Result.FormatSource)).Inc()
	}
	logf.FromContext(ctx).Info("frozen", "targets", len(p.candidates), "message", message)
	r.event(op.raw, nil, corev1.EventTypeNormal, resolve.PairFrozen, "Freeze", message)
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
	fresh, err := newRecord(op.raw)
	if err != nil {
		return err
	}
	return r.refuse(ctx, fresh, resolve.Fault{Reason: resolve.SchemaTooOld,
		Message: "the CRDs lack fields of the record that hostformat keeps (status.targets[].input of MachineOperation, status.deployed of MachineConfigurationVersion); upgrade the CRDs first, then create a new operation"})
}
