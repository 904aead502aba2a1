package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// begin returns the targets, and their Machines, that an operation that has
// frozen nothing would begin with now. Where the controller would refuse it as a
// whole, that is kept in the explanation; nobody begins it where the Machine
// that it names does not exist, so that nothing else is said then.
func (o *explainOptions) begin(ctx context.Context, e *operationExplanation, op *v1alpha3.MachineOperation) (targets []v1alpha3.OperationTarget, machines map[string][]byte, err error) {
	if ref := op.Spec.MachineRef; ref != "" {
		targets = []v1alpha3.OperationTarget{{MachineRef: ref}}
		if machines, err = o.machinesOf(ctx, targets); err != nil || machines[ref] == nil {
			return targets, machines, err
		}
	}
	if e.refuse(begin.SelectionFault(op, time.Now())) {
		return targets, machines, nil
	}
	if selector := op.Spec.MachineSelector; selector != nil {
		if targets, machines, err = o.selected(ctx, selector); err != nil {
			return nil, nil, err
		}
	}
	var chosen []v1alpha3.Machine
	for _, target := range targets {
		var known metav1.PartialObjectMetadata
		_ = json.Unmarshal(machines[target.MachineRef], &known) // the API server sees to it that this part is right
		chosen = append(chosen, v1alpha3.Machine{ObjectMeta: known.ObjectMeta})
	}
	e.refuse(begin.MachinesFault(op, chosen))
	return targets, machines, nil
}

// judgeStart keeps why the controller would refuse an operation that has frozen
// nothing for its Machines: it checks all of them before it claims a host, and
// replaces all or none.
func (o *explainOptions) judgeStart(ctx context.Context, e *operationExplanation, op *v1alpha3.MachineOperation) error {
	var hosts []begin.Host
	for _, t := range e.Targets {
		if t.Now == nil || t.Now.host == (begin.Host{}) {
			return nil // the controller cannot go on without it
		}
		hosts = append(hosts, t.Now.host)
	}
	shared := sharingOf(hosts)
	if err := shared.fill(ctx, o.cluster); err != nil {
		return err
	}
	for _, host := range hosts {
		if f := shared.fault(host); e.refuse(f.reason, f.message) {
			return nil
		}
	}
	for _, t := range e.Targets {
		switch {
		case t.Now.unresolved:
			e.refuse(resolve.Reason(t.Now.Reason), begin.NamedFault(t.Machine, t.Now.Refused))
			return nil
		case t.Now.Reason == reasonUnreadable:
			return nil
		}
	}
	for _, t := range e.Targets {
		if e.refuse(begin.UndeliverableFault(t.Machine, t.Now.pair, len(e.Targets))) {
			e.spare(t.Machine)
			return nil
		}
	}
	for _, host := range hosts {
		if f := o.claims.takeFault(begin.HolderOf(op), host); e.refuse(f.reason, f.message) {
			return nil
		}
	}
	return nil
}

// spare keeps why targets whose pair could be delivered are not replaced.
func (e *operationExplanation) spare(undeliverable string) {
	for i := range e.Targets {
		if t := &e.Targets[i]; resolve.DeliveryFault(t.Now.pair) == "" {
			reason, message := begin.SparedFault(undeliverable)
			t.Reason, t.Refused = string(reason), message
		}
	}
}

// judgeMark keeps why the controller would refuse an operation that has frozen
// pairs, and has yet to claim the hosts: it is from before there were claims, or
// has legacy snapshots. Where something was called already, it goes on, and
// targets that do not get their claim fail.
func (o *explainOptions) judgeMark(ctx context.Context, e *operationExplanation, op *v1alpha3.MachineOperation, machines map[string][]byte) error {
	frozen := meta.IsStatusConditionTrue(op.Status.Conditions, v1alpha3.ConditionFrozen)
	var hosts []begin.Host
	for _, target := range op.Status.Targets {
		host, pinned := begin.PinnedHost(target)
		if target.Phase.Finished() || target.Accepted() || frozen && !pinned {
			continue
		}
		if !frozen {
			raw := machines[target.MachineRef]
			if raw == nil {
				continue // its target fails for that
			}
			host = hostOf(raw)
		}
		hosts = append(hosts, host)
	}
	if len(hosts) == 0 || slices.ContainsFunc(op.Status.Targets, v1alpha3.OperationTarget.Begun) {
		return nil
	}
	if err := o.claims.load(ctx, hosts); err != nil {
		return err
	}
	self := begin.HolderOf(op)
	if frozen && o.claims.unknown == "" && o.claims.holder(hosts[len(hosts)-1]) == self {
		return nil
	}
	shared := sharingOf(hosts)
	if err := shared.fill(ctx, o.cluster); err != nil {
		return err
	}
	for _, host := range hosts {
		if f := shared.fault(host); e.refuse(f.reason, f.message) {
			return nil
		}
		if f := o.claims.takeFault(self, host); e.refuse(f.reason, f.message) {
			return nil
		}
	}
	return nil
}

// selected reads the Machines that a selector, which is one, selects. Targets
// are sorted by name, as they are frozen.
func (o *explainOptions) selected(ctx context.Context, selector *metav1.LabelSelector) (targets []v1alpha3.OperationTarget, machines map[string][]byte, err error) {
	labels, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, nil, err
	}
	machines = map[string][]byte{}
	err = o.cluster.each(ctx, "machines", labels.String(), defaultChunk, func(raw []byte, _ int64) error {
		name := nameOf(raw)
		machines[name] = raw
		targets = append(targets, v1alpha3.OperationTarget{MachineRef: name})
		return nil
	})
	slices.SortFunc(targets, func(a, b v1alpha3.OperationTarget) int { return strings.Compare(a.MachineRef, b.MachineRef) })
	return targets, machines, err
}

// refuse keeps why the controller would refuse the operation as a whole, and
// tells whether it would.
func (e *operationExplanation) refuse(reason resolve.Reason, message string) bool {
	if reason == "" {
		return false
	}
	e.Reason, e.Refused = string(reason), message
	return true
}
