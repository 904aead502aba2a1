package main

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// operationExplanation is what an operation has frozen, beside what its
// Machines say today.
type operationExplanation struct {
	Kind    string              `json:"kind"`
	Name    string              `json:"name"`
	Phase   string              `json:"phase"`
	Targets []targetExplanation `json:"targets"`
}

type targetExplanation struct {
	Machine string       `json:"machine"`
	Phase   string       `json:"phase"`
	Image   string       `json:"image"`
	Format  string       `json:"format"`
	Frozen  bool         `json:"frozen"` // whole: with a format
	Refused string       `json:"refused"`
	Now     *explanation `json:"now"`     // what the Machine says; null if it is gone
	Differs []string     `json:"differs"` // of image, format, machineUID, provider, providerID
}

// operation explains the targets of an operation or, before they are frozen,
// the Machine that it names.
func (o *explainOptions) operation(ctx context.Context, raw []byte) (*operationExplanation, error) {
	op := &v1alpha3.MachineOperation{}
	if err := json.Unmarshal(raw, op); err != nil {
		return nil, fmt.Errorf("MachineOperation %s cannot be read: %w", nameOf(raw), err)
	}
	if op.Spec.OperationKind != v1alpha3.HostReplace {
		return nil, fmt.Errorf("MachineOperation %s is a %s; only a HostReplace freezes an image and a format", op.Name, op.Spec.OperationKind)
	}
	e := &operationExplanation{Kind: "MachineOperation", Name: op.Name, Phase: string(op.Status.Phase), Targets: []targetExplanation{}}
	targets := op.Status.Targets
	if len(targets) == 0 && op.Spec.MachineRef != "" {
		targets = []v1alpha3.OperationTarget{{MachineRef: op.Spec.MachineRef}}
	}
	for _, target := range targets {
		t, err := o.target(ctx, target, len(op.Status.Targets) > 0)
		if err != nil {
			return nil, err
		}
		e.Targets = append(e.Targets, t)
	}
	return e, nil
}

func (o *explainOptions) target(ctx context.Context, target v1alpha3.OperationTarget, taken bool) (targetExplanation, error) {
	t := targetExplanation{Machine: target.MachineRef, Phase: string(target.Phase), Differs: []string{}}
	var machine *v1alpha3.Machine // nil if it is gone, or cannot be read
	raw, err := o.cluster.get(ctx, "machines", target.MachineRef)
	switch {
	case err == nil:
		machine, _ = readMachine(raw)
		if t.Now, err = explainMachine(ctx, o.reader, raw); err != nil {
			return t, err
		}
	case !apierrors.IsNotFound(err) || !hasName(err):
		return t, err
	}
	if !taken {
		return t, nil
	}
	var input v1alpha3.OperationInput
	if target.Input != nil {
		input = *target.Input
	}
	pair := resolve.Pair{Image: resolve.TrimImage(input.HostImage), Format: input.ProvisioningFormat}
	t.Image, t.Format, t.Frozen = pair.Image, string(pair.Format), pair.Format != ""
	switch {
	case t.Frozen:
		if t.Refused = resolve.PairFault(pair); t.Refused == "" {
			t.Refused = resolve.DeliveryFault(pair)
		}
	case machine != nil: // a legacy snapshot takes the format of today
		result, err := resolve.Snapshot(input.HostImage, machine)
		if err != nil {
			t.Refused = err.Error()
		} else {
			t.Format, t.Refused = string(result.Format), resolve.DeliveryFault(result.Pair)
		}
	}
	if machine != nil {
		t.Differs = differences(input, t, machine)
	}
	return t, nil
}

// differences names what a Machine says otherwise today than a target froze.
func differences(input v1alpha3.OperationInput, t targetExplanation, machine *v1alpha3.Machine) []string {
	differs := []string{}
	provider, id := resolve.Provider(machine)
	for name, different := range map[string]bool{
		"image":      t.Now.Image != t.Image,
		"format":     t.Now.Format != t.Format,
		"machineUID": input.MachineUID != "" && input.MachineUID != machine.UID,
		"provider":   input.Provider != "" && input.Provider != provider,
		"providerID": input.Provider != "" && input.ProviderID != id,
	} {
		if different {
			differs = append(differs, name)
		}
	}
	slices.Sort(differs)
	return differs
}
