package operation

import (
	"cmp"
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/versions"
)

// picked is what an operation would do, as read from the cluster.
type picked struct {
	// leave means that the operation is not for this controller.
	leave bool
	// fault refuses the operation.
	fault resolve.Fault
	// spared holds the fault of each target, if the pairs are recorded although
	// the operation is refused.
	spared     []resolve.Fault
	candidates []resolve.Candidate
	targets    []v1alpha3.OperationTarget
	// unmarked are versions that have to be marked as deployed first.
	unmarked []*v1alpha3.MachineConfigurationVersion
}

// pick reads what an operation acts on, and decides whether it may start. It
// writes nothing.
func (r *Reconciler) pick(ctx context.Context, op *record) (p picked, err error) {
	machines, err := r.machinesOf(ctx, op)
	if apierrors.IsNotFound(err) {
		missing := resolve.MissingFault(op.Spec.MachineRef)
		r.event(op.raw, nil, corev1.EventTypeWarning, missing.Reason, "PickUp", missing.Message)
		return picked{leave: true}, nil
	}
	if err != nil {
		return p, err
	}
	for i := range machines {
		p.candidates = append(p.candidates, resolve.Candidate{Machine: &machines[i]})
	}
	if p.leave, p.fault, err = r.othersMachines(ctx, op, machines); p.leave || p.fault.Found() || err != nil {
		return p, err
	}
	if p.fault = resolve.SelectedFault(op.MachineOperation, p.candidates, r.Clock.Now()); p.fault.Found() {
		return p, nil
	}
	resolver := versions.NewResolver(r.Live)
	for i := range p.candidates {
		c := &p.candidates[i]
		if c.Sharing, err = r.sharing(ctx, resolve.HostOf(c.Machine)); err != nil {
			return p, err
		}
		var version *v1alpha3.MachineConfigurationVersion
		if c.Result, version, c.Fault, err = resolver.Resolve(ctx, c.Machine); err != nil {
			return p, err
		}
		if r.MarkDeployed && c.Result.ImageSource == resolve.FromTemplate && !version.Status.Deployed && !slices.Contains(p.unmarked, version) {
			p.unmarked = append(p.unmarked, version)
		}
	}
	start := resolve.Begin(op.MachineOperation, p.candidates, r.Clock.Now())
	if p.fault, p.spared = start.Fault, start.Targets; p.fault.Found() && p.spared == nil {
		return p, nil
	}
	targets, fault := freeze(p.candidates)
	if fault.Found() {
		p.fault, p.spared = fault, nil
	}
	p.targets = targets
	return p, nil
}

// othersMachines reports whether an operation is left to other controllers: not
// every one of its Machines has a provider that is registered here. If the
// operation holds a claim already, it is refused instead.
func (r *Reconciler) othersMachines(ctx context.Context, op *record, machines []v1alpha3.Machine) (leave bool, f resolve.Fault, err error) {
	ours := 0
	for i := range machines {
		if r.registered(&machines[i]) {
			ours++
		}
	}
	if ours == len(machines) {
		return false, f, nil
	}
	held, err := r.holdsAny(ctx, op, machines)
	if err != nil {
		return false, f, err
	}
	const message = "not every Machine that is selected has a provider that is registered here; create an operation for each provider"
	if held {
		return false, resolve.Fault{Reason: resolve.MixedProviders, Message: message}, nil
	}
	if ours > 0 {
		r.event(op.raw, nil, corev1.EventTypeWarning, resolve.MixedProviders, "PickUp", message+"; this one is left alone")
	}
	return true, f, nil
}

// holdsAny reports whether an operation has claimed the host of one of its
// Machines, as after a crash during its start. It reads only the claims of Machines
// whose provider is registered here.
func (r *Reconciler) holdsAny(ctx context.Context, op *record, machines []v1alpha3.Machine) (bool, error) {
	for i := range machines {
		if !r.registered(&machines[i]) {
			continue
		}
		_, claim, err := r.readClaim(ctx, resolve.HostOf(&machines[i]))
		if err != nil || claim.Holder == resolve.HolderOf(op.MachineOperation) {
			return err == nil, err
		}
	}
	return false, nil
}

// sharing returns the names of other Machines that name the host. They come from an
// index, which may lag, and are confirmed live.
func (r *Reconciler) sharing(ctx context.Context, host resolve.Host) (names []string, err error) {
	if host.ProviderID == "" {
		return nil, nil
	}
	if !r.Hosts.HasSynced() {
		return nil, errors.New("the index of hosts is not filled yet")
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
			return nil, err
		}
		if resolve.HostOf(other).ClaimName() == host.ClaimName() {
			names = append(names, name)
		}
	}
	return names, nil
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

// readMachine reads a Machine live. A reference that cannot be the name of a
// Machine is not found, instead of being read again and again.
func (r *Reconciler) readMachine(ctx context.Context, name string) (*v1alpha3.Machine, error) {
	if !resolve.NamesObject(name) {
		return nil, apierrors.NewNotFound(v1alpha3.GroupVersion.WithResource("machines").GroupResource(), name)
	}
	machine := &v1alpha3.Machine{}
	return machine, r.Live.Get(ctx, types.NamespacedName{Name: name}, machine)
}
