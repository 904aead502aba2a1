package main

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// operationExplanation is what an operation has frozen, beside what its
// Machines say today.
type operationExplanation struct {
	Kind    string              `json:"kind"`
	Name    string              `json:"name"`
	Phase   string              `json:"phase"`
	Refused string              `json:"refused"`          // why the controller would fail it as a whole; empty if it would not
	Reason  string              `json:"reason,omitempty"` // the same in one word
	Targets []targetExplanation `json:"targets"`

	over bool // nothing is going to happen any more
}

type targetExplanation struct {
	Machine string       `json:"machine"`
	Phase   string       `json:"phase"`
	Image   string       `json:"image"`
	Format  string       `json:"format"`
	Frozen  bool         `json:"frozen"`           // whole: with a format
	Refused string       `json:"refused"`          // why the controller would fail it; empty if it would not
	Reason  string       `json:"reason,omitempty"` // the same in one word
	Now     *explanation `json:"now"`              // what the Machine says; null if it is gone
	Differs []string     `json:"differs"`          // of image, format, machineUID, provider, providerID

	taken bool // it stands in the status
	over  bool // nothing is going to happen to it any more
}

// manyTargets is from how many targets on all Machines are listed, where each
// would else take a read of its own.
const manyTargets = 20

// operation explains the targets of an operation or, before they are frozen,
// the Machines that it would begin with.
func (o *explainOptions) operation(ctx context.Context, raw []byte) (*operationExplanation, error) {
	op := &v1alpha3.MachineOperation{}
	if err := json.Unmarshal(raw, op); err != nil {
		return nil, fmt.Errorf("MachineOperation %s cannot be read: %w", nameOf(raw), err)
	}
	if op.Spec.OperationKind != v1alpha3.HostReplace {
		return nil, fmt.Errorf("MachineOperation %s is a %s; only a HostReplace freezes an image and a format", op.Name, op.Spec.OperationKind)
	}
	e := &operationExplanation{Kind: "MachineOperation", Name: op.Name, Phase: string(op.Status.Phase), Targets: []targetExplanation{},
		over: op.Status.Phase.Finished() || op.DeletionTimestamp != nil}
	targets, taken := op.Status.Targets, len(op.Status.Targets) > 0
	var machines map[string][]byte
	var err error
	if refused := !e.over && e.refuse(begin.CopyFault(op)); taken || e.over || refused {
		machines, err = o.machinesOf(ctx, targets)
	} else {
		targets, machines, err = o.begin(ctx, e, op)
	}
	if err != nil {
		return nil, err
	}
	if err := o.loadClaims(ctx, machines); err != nil {
		return nil, err
	}
	marked := begin.Marked(op)
	if taken && !marked && !e.over && e.Refused == "" {
		if err := o.judgeMark(ctx, e, op, machines); err != nil {
			return nil, err
		}
	}
	seen := map[string]bool{}
	for _, target := range targets {
		t := targetExplanation{Machine: target.MachineRef, Phase: string(target.Phase), Differs: []string{},
			taken: taken, over: e.over || target.Phase.Finished() || taken && e.Refused != ""}
		if reason, message := begin.DuplicateFault(seen, target); !t.over {
			t.Reason, t.Refused = string(reason), message
		}
		if err := t.explain(ctx, o.reader, op, target, machines[target.MachineRef]); err != nil {
			return nil, err
		}
		if t.Now != nil {
			o.tellClaim(t.Now)
			t.Now.own = o.claims.holder(t.Now.host) == begin.HolderOf(op)
		}
		if taken && t.open(target) && t.Now != nil && t.Now.host != (begin.Host{}) {
			t.judgeClaim(o.claims, begin.HolderOf(op), marked)
		}
		e.Targets = append(e.Targets, t)
	}
	if !taken && !e.over && e.Refused == "" {
		return e, o.judgeStart(ctx, e, op)
	}
	return e, nil
}

// loadClaims reads the claims on the hosts of Machines.
func (o *explainOptions) loadClaims(ctx context.Context, machines map[string][]byte) error {
	var hosts []begin.Host
	for _, raw := range machines {
		hosts = append(hosts, hostOf(raw))
	}
	return o.claims.load(ctx, hosts)
}

// open reports whether a target has yet to be called for, as far as is known.
func (t *targetExplanation) open(target v1alpha3.OperationTarget) bool {
	return !t.over && t.Refused == "" && !target.Accepted()
}

// judgeClaim says why a target may not be called for: another operation has the
// claim on its host. Before an operation is marked, it takes the claims that it
// can have.
func (t *targetExplanation) judgeClaim(claims *claims, self begin.Holder, marked bool) {
	if !marked && claims.takeFault(self, t.Now.host).reason == "" {
		return
	}
	f := claims.holdFault(self, t.Now.host)
	t.Reason, t.Refused = string(f.reason), f.message
}

// machinesOf reads the Machines of targets. One that does not exist is not
// among them.
func (o *explainOptions) machinesOf(ctx context.Context, targets []v1alpha3.OperationTarget) (map[string][]byte, error) {
	machines := map[string][]byte{}
	if len(targets) < manyTargets {
		for _, target := range targets {
			if !begin.NamesObject(target.MachineRef) {
				continue
			}
			raw, err := o.cluster.get(ctx, "machines", target.MachineRef)
			switch {
			case err == nil:
				machines[target.MachineRef] = raw
			case !apierrors.IsNotFound(err) || !hasName(err):
				return nil, err
			}
		}
		return machines, nil
	}
	wanted := map[string]bool{}
	for _, target := range targets {
		wanted[target.MachineRef] = true
	}
	err := o.cluster.each(ctx, "machines", "", defaultChunk, func(raw []byte, _ int64) error {
		if name := nameOf(raw); wanted[name] {
			machines[name] = slices.Clone(raw) // the rest of its page is not kept
		}
		return nil
	})
	return machines, err
}

// explain fills in what a target has frozen, what its Machine says today, and
// why the controller would fail it.
func (t *targetExplanation) explain(ctx context.Context, reader *versions, op *v1alpha3.MachineOperation, target v1alpha3.OperationTarget, raw []byte) (err error) {
	var machine *v1alpha3.Machine // nil if it is gone, or cannot be read
	if raw != nil {
		machine, _ = readMachine(raw)
		if t.Now, err = explainMachine(ctx, reader, raw); err != nil {
			return err
		}
	}
	if !t.taken {
		if t.Now == nil {
			t.Reason, t.Refused = string(resolve.MachineNotFound), "the Machine does not exist; an operation does not wait for it: create a new one when it does"
		} else {
			t.Reason, t.Refused = t.Now.Reason, t.Now.Refused
		}
		return nil
	}
	var input v1alpha3.OperationInput
	if target.Input != nil {
		input = *target.Input
	}
	pair := resolve.Pair{Image: resolve.TrimImage(input.HostImage), Format: input.ProvisioningFormat}
	t.Frozen = pair.Format != ""
	if t.open(target) {
		t.judge(op, target, &pair, input, machine)
	}
	t.Image, t.Format = pair.Image, string(pair.Format)
	if machine != nil {
		t.Differs = differences(input, *t, machine)
	}
	return nil
}

// judge says why the controller would fail a target that it has yet to call a
// provider for, in the order in which it asks. A snapshot from before the format
// field takes the format of today.
func (t *targetExplanation) judge(op *v1alpha3.MachineOperation, target v1alpha3.OperationTarget, pair *resolve.Pair, input v1alpha3.OperationInput, machine *v1alpha3.Machine) {
	var unresolved error
	if !t.Frozen && machine != nil {
		var result resolve.Result
		if result, unresolved = resolve.Snapshot(input.HostImage, machine); unresolved == nil {
			*pair = result.Pair
		}
	}
	if t.refuse(begin.TargetFault(op, target)) {
		return
	}
	parameters, unreadable := begin.ReadParameters(op.Spec.Parameters)
	if !target.Begun() && unreadable == "" && !parameters.Pause && t.refuse(begin.HaltFault(op.Status.Targets, parameters)) {
		return
	}
	if t.Frozen && t.refuse(begin.PairFault(*pair)) {
		return
	}
	if t.Now != nil && machine == nil {
		t.Reason, t.Refused = t.Now.Reason, t.Now.Refused
		return
	}
	switch {
	case t.refuse(resolve.PinFault(input, machine)) || t.Frozen:
	case unresolved != nil:
		t.refuse(resolve.NotResolved, unresolved.Error())
	default:
		t.refuse(begin.PairFault(*pair))
	}
}

// refuse keeps why the controller would fail the target, and reports whether it
// would.
func (t *targetExplanation) refuse(reason resolve.Reason, message string) bool {
	if reason == "" {
		return false
	}
	t.Reason, t.Refused = string(reason), message
	return true
}

// differences names what a Machine says otherwise today than a target froze.
func differences(input v1alpha3.OperationInput, t targetExplanation, machine *v1alpha3.Machine) []string {
	differs := []string{}
	provider, id := resolve.Provider(machine)
	for name, different := range map[string]bool{
		"image":      t.Now.Image != t.Image,
		"format":     t.Format != "" && t.Now.Format != t.Format,
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
