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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// picked is what a reading of the cluster says that an operation would do.
type picked struct {
	// leave means that the operation is another controller's, or nobody's.
	leave bool
	// fault keeps the operation from starting.
	fault    fault
	machines []v1alpha3.Machine
	all      []resolved
	targets  []any
	// unmarked are versions that have to be marked as deployed first.
	unmarked []*v1alpha3.MachineConfigurationVersion
	// undeliverable is set where a pair cannot be delivered. The pairs are
	// recorded all the same, so that people see what was resolved.
	undeliverable *resolved
}

// pick reads what an operation acts on, and checks all that can refuse it. It
// writes nothing.
func (r *Reconciler) pick(ctx context.Context, op *record) (p picked, err error) {
	p.machines, err = r.machinesOf(ctx, op)
	if apierrors.IsNotFound(err) {
		r.event(op.was, nil, corev1.EventTypeWarning, string(resolve.MachineNotFound), "PickUp",
			fmt.Sprintf("Machine %q does not exist; an operation does not wait for it: create a new one when it does", op.Spec.MachineRef))
		return picked{leave: true}, nil
	}
	if err != nil {
		return p, err
	}
	ours := 0
	for i := range p.machines {
		if r.registered(&p.machines[i]) {
			ours++
		}
	}
	if ours < len(p.machines) {
		held, err := r.holdsAny(ctx, op, p.machines)
		if err != nil {
			return p, err
		}
		const message = "not every Machine that is selected has a provider that is registered here; create an operation for each provider"
		if held {
			p.fault = fault{begin.MixedProviders, message}
			return p, nil
		}
		if ours > 0 {
			r.event(op.was, nil, corev1.EventTypeWarning, string(begin.MixedProviders), "PickUp", message+"; this one is left alone")
		}
		return picked{leave: true}, nil // another controller's
	}
	for _, check := range []func() (resolve.Reason, string){
		func() (resolve.Reason, string) { return begin.SelectionFault(op.MachineOperation, r.Clock.Now()) },
		func() (resolve.Reason, string) { return begin.MachinesFault(op.MachineOperation, p.machines) },
	} {
		if p.fault = faultOf(check()); p.fault.found() {
			return p, nil
		}
	}
	if p.fault, err = r.sharedHost(ctx, p.machines); err != nil || p.fault.found() {
		return p, err
	}
	p.all, p.unmarked, err = r.resolveAll(ctx, p.machines)
	if resolveErr, terminal := errors.AsType[*resolve.Error](err); terminal {
		p.fault = fault{resolveErr.Reason, err.Error()}
		return p, nil
	}
	if err != nil {
		return p, err
	}
	if p.targets, err = freeze(p.all); err != nil {
		p.fault = fault{begin.TooManyTargets, err.Error()}
		return p, nil //nolint:nilerr // the fault says it
	}
	for i := range p.all {
		if resolve.DeliveryFault(p.all[i].result.Pair) != "" {
			p.undeliverable = &p.all[i]
			break
		}
	}
	return p, nil
}

// holdsAny reports whether an operation has claimed the host of one of its
// Machines, as one does that crashed while it was started. It asks only about
// those whose provider is registered here.
func (r *Reconciler) holdsAny(ctx context.Context, op *record, machines []v1alpha3.Machine) (bool, error) {
	for i := range machines {
		if !r.registered(&machines[i]) {
			continue
		}
		_, claim, err := r.readClaim(ctx, begin.HostOf(&machines[i]))
		if err != nil || claim.Holder == begin.HolderOf(op.MachineOperation) {
			return err == nil, err
		}
	}
	return false, nil
}

// sharedHost reports two Machines that name one host. Candidates come from an
// index, which may lag, and are confirmed live.
func (r *Reconciler) sharedHost(ctx context.Context, machines []v1alpha3.Machine) (fault, error) {
	named := map[string]string{}
	for i := range machines {
		host := begin.HostOf(&machines[i])
		if host.ProviderID == "" {
			continue
		}
		if other, known := named[host.ClaimName()]; known {
			return faultOf(begin.SharedFault(host, []string{other})), nil
		}
		named[host.ClaimName()] = host.Machine
		f, err := r.hostSharedWith(ctx, host)
		if err != nil || f.found() {
			return f, err
		}
	}
	return fault{}, nil
}

// hostSharedWith reports another Machine that names the host, too.
func (r *Reconciler) hostSharedWith(ctx context.Context, host begin.Host) (fault, error) {
	if host.ProviderID == "" {
		return fault{}, nil
	}
	if !r.Hosts.HasSynced() {
		return fault{}, errors.New("the index of hosts is not filled yet")
	}
	for _, name := range r.Hosts.Naming(host.Provider, host.ProviderID) {
		if name == host.Machine {
			continue
		}
		other, err := r.readMachine(ctx, name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fault{}, err
		}
		if begin.HostOf(other).ClaimName() == host.ClaimName() {
			return faultOf(begin.SharedFault(host, []string{name})), nil
		}
	}
	return fault{}, nil
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
		// More than an operation holds need not be read to be refused.
		if list.Continue == "" || len(machines) > v1alpha3.MaxTargets {
			break
		}
	}
	slices.SortFunc(machines, func(a, b v1alpha3.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return machines, nil
}

// resolveAll resolves every Machine. A version that several Machines refer to
// is read once. It returns the versions that have to be marked as deployed before
// a pair is frozen from them.
func (r *Reconciler) resolveAll(ctx context.Context, machines []v1alpha3.Machine) (all []resolved, unmarked []*v1alpha3.MachineConfigurationVersion, err error) {
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
			if r.MarkDeployed && !version.Status.Deployed && !slices.Contains(unmarked, version) {
				unmarked = append(unmarked, version)
			}
		}
		all = append(all, one)
	}
	return all, unmarked, nil
}

// named adds the Machine to a terminal error.
func named(machine *v1alpha3.Machine, err error) error {
	if resolveErr, ok := errors.AsType[*resolve.Error](err); ok {
		return &resolve.Error{Reason: resolveErr.Reason, Message: begin.NamedFault(machine.Name, resolveErr.Message)}
	}
	return err
}
