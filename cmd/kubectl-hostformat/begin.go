package main

import (
	"context"
	"slices"
	"strings"
	"time"

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
