package operation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// start picks an operation up and freezes all its pairs in one status write.
// It does nothing else: whatever follows reads the pairs back.
func (r *Reconciler) start(ctx context.Context, op *record) (reconcile.Result, error) {
	r.picking.Lock()
	defer r.picking.Unlock()

	machines, err := r.machinesOf(ctx, op)
	if err != nil {
		if apierrors.IsNotFound(err) {
			r.event(op.was, nil, corev1.EventTypeWarning, "MachineNotFound", "PickUp",
				fmt.Sprintf("Machine %q does not exist; an operation does not wait for it: create a new one when it does", op.Spec.MachineRef))
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	ours := 0
	for i := range machines {
		if r.registered(&machines[i]) {
			ours++
		}
	}
	if ours < len(machines) {
		if ours > 0 {
			r.event(op.was, nil, corev1.EventTypeWarning, "MixedProviders", "PickUp",
				"not every Machine that is selected has a provider that is registered here; the operation is left alone: create one for each provider")
		}
		return reconcile.Result{}, nil // another controller's
	}
	reason, message := begin.SelectionFault(op.MachineOperation, r.Clock.Now())
	if reason == "" {
		reason, message = begin.MachinesFault(op.MachineOperation, machines)
	}
	if reason != "" {
		return reconcile.Result{}, r.refuse(ctx, op, string(reason), message)
	}
	for i := range machines {
		other, err := r.findOther(ctx, op, &machines[i])
		if err != nil {
			return reconcile.Result{}, err
		}
		if other != "" {
			return reconcile.Result{}, r.refuse(ctx, op, "OtherOperation", fmt.Sprintf(
				"MachineOperation %q replaces the host of Machine %q and had not finished when this one was created; create a new operation when it has", other, machines[i].Name))
		}
	}

	all, unmarked, err := r.resolveAll(ctx, machines)
	if err != nil {
		if resolveErr, terminal := errors.AsType[*resolve.Error](err); terminal {
			return reconcile.Result{}, r.refuse(ctx, op, string(resolveErr.Reason), err.Error())
		}
		return reconcile.Result{}, err
	}
	if unmarked != nil {
		// In a reconcile of its own, after which the version is read again: it
		// may have been edited until now.
		if err := r.markDeployed(ctx, unmarked); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: 1}, nil
	}
	targets, err := freeze(all)
	if err != nil {
		return reconcile.Result{}, r.refuse(ctx, op, "TooManyTargets", err.Error())
	}

	now := r.Clock.Now()
	message = "image and format are frozen: " + all[0].describe()
	if len(all) > 1 {
		message = fmt.Sprintf("image and format are frozen for %d Machines", len(all))
	}
	op.set(targets, "targets")
	op.set(string(v1alpha3.OperationPending), "phase")
	op.set(bounded(message), "message")
	if len(all) == 1 {
		op.set(all[0].machine.Generation, "observedMachineGeneration")
	}
	op.setCondition(ConditionFrozen, metav1.ConditionTrue, "PairFrozen", message, now)
	if err := op.write(ctx, r.Writer); err != nil {
		return reconcile.Result{}, err
	}
	for _, one := range all {
		resolutions.WithLabelValues(string(one.result.ImageSource), string(one.result.FormatSource)).Inc()
	}
	logf.FromContext(ctx).Info("frozen", "targets", len(all), "message", message)
	r.event(op.was, nil, corev1.EventTypeNormal, "PairFrozen", "Freeze", message)
	return reconcile.Result{}, nil
}

// machinesOf reads the Machines that an operation names or selects, sorted by
// name. A Machine that is named and not there is an error.
func (r *Reconciler) machinesOf(ctx context.Context, op *record) ([]v1alpha3.Machine, error) {
	var machines []v1alpha3.Machine
	if op.Spec.MachineRef != "" {
		machine, err := r.readMachine(ctx, op.Spec.MachineRef)
		if err != nil {
			return nil, err
		}
		machines = append(machines, *machine)
	}
	if op.Spec.MachineSelector == nil {
		return machines, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(op.Spec.MachineSelector)
	if err != nil {
		return nil, nil //nolint:nilerr // SelectionFault says so
	}
	list := &v1alpha3.MachineList{}
	for {
		if err := r.Live.List(ctx, list, client.MatchingLabelsSelector{Selector: selector}, client.Limit(500), client.Continue(list.Continue)); err != nil {
			return nil, err
		}
		for i := range list.Items {
			machines = append(machines, *list.Items[i].DeepCopy())
		}
		if list.Continue == "" {
			break
		}
	}
	slices.SortFunc(machines, func(a, b v1alpha3.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return machines, nil
}

// resolveAll resolves every Machine. A version that several Machines refer to
// is read once. It returns a version, if any, that has to be marked as deployed
// before a pair is frozen from it.
func (r *Reconciler) resolveAll(ctx context.Context, machines []v1alpha3.Machine) (all []resolved, unmarked *v1alpha3.MachineConfigurationVersion, err error) {
	type pin struct {
		name    string
		pinned  bool
		version int32
	}
	versions := map[pin]*v1alpha3.MachineConfigurationVersion{}
	for i := range machines {
		machine := &machines[i]
		var version *v1alpha3.MachineConfigurationVersion
		if resolve.NeedsVersion(machine) {
			ref := *machine.Spec.ConfigurationRef
			key := pin{name: ref.Name}
			if ref.Version != nil {
				key.pinned, key.version = true, *ref.Version
			}
			if version = versions[key]; version == nil {
				if version, err = resolve.Version(ctx, r.Live, ref); err != nil {
					return nil, nil, named(machine, err)
				}
				versions[key] = version
			}
		}
		result, err := resolve.Machine(machine, version)
		if err != nil {
			return nil, nil, named(machine, err)
		}
		one := resolved{machine: machine, result: result}
		if result.ImageSource == resolve.FromTemplate {
			one.version = version.Name
			if r.MarkDeployed && !version.Status.Deployed {
				unmarked = version
			}
		}
		all = append(all, one)
	}
	return all, unmarked, nil
}

// named adds the Machine to a terminal error.
func named(machine *v1alpha3.Machine, err error) error {
	if resolveErr, ok := errors.AsType[*resolve.Error](err); ok {
		return &resolve.Error{Reason: resolveErr.Reason, Message: fmt.Sprintf("Machine %q: %s", machine.Name, resolveErr.Message)}
	}
	return err
}

func (r *Reconciler) markDeployed(ctx context.Context, version *v1alpha3.MachineConfigurationVersion) error {
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"deployed":true}}`, version.ResourceVersion)
	return r.Writer.Status().Patch(ctx, version.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), strictly)
}

// refuseOldSchema fails an operation whose record the CRD would not keep.
func (r *Reconciler) refuseOldSchema(ctx context.Context, op *record) error {
	fresh, err := newRecord(op.was)
	if err != nil {
		return err
	}
	return r.refuse(ctx, fresh, "SchemaTooOld",
		"the CRDs lack fields that hostformat records what it does in (status.targets[].input of MachineOperation, status.deployed of MachineConfigurationVersion); upgrade the CRDs first, then create a new operation")
}
