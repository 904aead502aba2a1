package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// operationExplanation is what an operation has frozen, beside what its Machines
// say now. Its JSON names are an interface: adding one is fine, renaming one is
// not.
type operationExplanation struct {
	Kind    string              `json:"kind"`
	Name    string              `json:"name"`
	Phase   string              `json:"phase"`
	Refused string              `json:"refused"`          // why the controller would fail it as a whole; empty if it would not
	Reason  resolve.Reason      `json:"reason,omitempty"` // the same in one word
	Targets []targetExplanation `json:"targets"`
	// WaitsFor are the providers of an operation that may start: only a controller
	// that has all of them starts it.
	WaitsFor []string `json:"waitsFor,omitempty"`

	finished bool // nothing is going to happen any more
}

type targetExplanation struct {
	Machine string         `json:"machine"`
	Phase   string         `json:"phase"`
	Image   string         `json:"image"`
	Format  string         `json:"format"`
	Frozen  bool           `json:"frozen"`           // whole: with a format
	Refused string         `json:"refused"`          // why the controller would fail it; empty if it would not
	Reason  resolve.Reason `json:"reason,omitempty"` // the same in one word
	Now     *explanation   `json:"now"`              // what the Machine says; null if it does not exist
	Differs []string       `json:"differs"`          // of image, format, machineUID, provider, providerID

	recorded bool // in the status of the operation
	finished bool // nothing is going to happen to it any more
}

func (e *operationExplanation) refuse(f resolve.Fault) { e.Reason, e.Refused = f.Reason, f.Message }
func (t *targetExplanation) refuse(f resolve.Fault)    { t.Reason, t.Refused = f.Reason, f.Message }

// manyTargets is the number of targets from which on all Machines are listed. Each
// Machine would otherwise take a read of its own.
const manyTargets = 20

// operation explains the targets of an operation or, before they are frozen, the
// Machines that it would start with.
func (o *explainOptions) operation(ctx context.Context, raw []byte) (*operationExplanation, error) {
	op := &v1alpha3.MachineOperation{}
	if err := json.Unmarshal(raw, op); err != nil {
		return nil, fmt.Errorf("MachineOperation %s cannot be read: %w", nameOf(raw), err)
	}
	if op.Spec.OperationKind != v1alpha3.HostReplace {
		return nil, fmt.Errorf("MachineOperation %s is a %s; only a HostReplace freezes an image and a format", op.Name, op.Spec.OperationKind)
	}
	e := &operationExplanation{Kind: "MachineOperation", Name: op.Name, Phase: string(op.Status.Phase), Targets: []targetExplanation{},
		finished: op.Status.Phase.Finished() || op.DeletionTimestamp != nil}
	if !e.finished {
		e.refuse(resolve.CopyFault(op))
	}
	if len(op.Status.Targets) > 0 || e.finished || e.Refused != "" {
		return e, o.explainTargets(ctx, e, op)
	}
	return e, o.explainStart(ctx, e, op)
}

// explainStart explains an operation that has not started.
func (o *explainOptions) explainStart(ctx context.Context, e *operationExplanation, op *v1alpha3.MachineOperation) error {
	names, machines, err := o.chosen(ctx, op)
	if err != nil {
		return err
	}
	if err := o.loadClaims(ctx, machines); err != nil {
		return err
	}
	var candidates []resolve.Candidate
	var hosts []resolve.Host
	unreadable := false
	for _, name := range names {
		t := targetExplanation{Machine: name, Differs: []string{}}
		if raw := machines[name]; raw == nil {
			t.refuse(resolve.MissingFault(name))
		} else {
			if t.Now, err = explainMachine(ctx, o.resolver, raw); err != nil {
				return err
			}
			o.tellClaim(t.Now)
			t.Now.own = o.claims.holder(t.Now.host) == resolve.HolderOf(op)
			t.Reason, t.Refused = t.Now.Reason, t.Now.Refused
			candidate := t.Now.candidate
			if candidate.Machine == nil {
				candidate, unreadable = resolve.Candidate{Machine: metadataOf(raw), Fault: resolve.Fault{Reason: t.Reason, Message: t.Refused}}, true
			}
			candidates, hosts = append(candidates, candidate), append(hosts, t.Now.host)
		}
		e.Targets = append(e.Targets, t)
	}
	if op.Spec.MachineRef != "" && len(candidates) == 0 {
		return nil // no controller starts it, as its target says
	}
	if !resolve.SelectedFault(op, candidates, time.Now()).Found() && !unreadable {
		shared := sharingOf(hosts)
		if err := shared.fill(ctx, o.cluster); err != nil {
			return err
		}
		for i := range candidates {
			candidates[i].Sharing = shared.of(hosts[i])
		}
	}
	start := resolve.Begin(op, candidates, time.Now())
	for i, fault := range start.Targets {
		if fault.Reason == resolve.Halted {
			e.Targets[i].refuse(fault)
		}
	}
	if start.Fault.Reason != resolve.Unreadable { // the controller reads it again and again
		e.refuse(start.Fault)
	}
	for _, host := range hosts {
		if e.Refused == "" && !unreadable {
			e.refuse(o.claims.takeFault(resolve.HolderOf(op), host))
		}
	}
	for _, host := range hosts {
		if e.Refused == "" && !slices.Contains(e.WaitsFor, host.Provider) {
			e.WaitsFor = append(e.WaitsFor, host.Provider)
		}
	}
	slices.Sort(e.WaitsFor)
	return nil
}

// metadataOf returns a Machine of which only the metadata can be read.
func metadataOf(raw []byte) *v1alpha3.Machine {
	var known metav1.PartialObjectMetadata
	_ = json.Unmarshal(raw, &known) // the API server validates the metadata
	return &v1alpha3.Machine{ObjectMeta: known.ObjectMeta}
}

// chosen reads the Machines that an operation names or selects. Their names are
// sorted. A Machine that does not exist has a name only. Nothing is selected with
// a selection that the controller would refuse.
func (o *explainOptions) chosen(ctx context.Context, op *v1alpha3.MachineOperation) (names []string, machines map[string][]byte, err error) {
	if ref := op.Spec.MachineRef; ref != "" {
		machines, err = o.machinesOf(ctx, []string{ref})
		return []string{ref}, machines, err
	}
	machines = map[string][]byte{}
	if op.Spec.MachineSelector == nil || resolve.SelectionFault(op, time.Now()).Found() {
		return nil, machines, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(op.Spec.MachineSelector)
	if err != nil {
		return nil, nil, err
	}
	if err := o.readAllVersions(ctx); err != nil {
		return nil, nil, err
	}
	err = o.cluster.each(ctx, "machines", selector.String(), defaultChunk, func(raw []byte, _ int64) error {
		name := nameOf(raw)
		machines[name] = raw
		names = append(names, name)
		return nil
	})
	slices.SortFunc(names, strings.Compare)
	return names, machines, err
}

// explainTargets explains the targets that are recorded in an operation.
func (o *explainOptions) explainTargets(ctx context.Context, e *operationExplanation, op *v1alpha3.MachineOperation) error {
	var names []string
	for _, target := range op.Status.Targets {
		names = append(names, target.MachineRef)
	}
	machines, err := o.machinesOf(ctx, names)
	if err != nil {
		return err
	}
	if err := o.loadClaims(ctx, machines); err != nil {
		return err
	}
	if !e.finished && e.Refused == "" && !resolve.Marked(op) {
		if err := o.judgeClaims(ctx, e, op, machines); err != nil {
			return err
		}
	}
	faults := resolve.TargetFaults(op)
	pace := resolve.PaceOf(op.Spec.Parameters, op.Status.Targets)
	for i, target := range op.Status.Targets {
		t := targetExplanation{Machine: target.MachineRef, Phase: string(target.Phase), Differs: []string{}, recorded: true,
			finished: e.finished || target.Phase.Finished() || e.Refused != ""}
		pair := resolve.FrozenPair(target)
		t.Frozen = pair.Format != ""
		if raw := machines[target.MachineRef]; raw != nil {
			if t.Now, err = explainMachine(ctx, o.resolver, raw); err != nil {
				return err
			}
			o.tellClaim(t.Now)
			t.Now.own = o.claims.holder(t.Now.host) == resolve.HolderOf(op)
		}
		if !t.finished {
			t.refuse(faults[i])
			if !faults[i].Found() && !target.Accepted() {
				t.refuse(o.attemptFault(op, target, pace, t.Now))
				if !t.Frozen && t.Now != nil && t.Now.candidate.Machine != nil {
					if result, fault := resolve.Snapshot(pair.Image, t.Now.candidate.Machine); !fault.Found() {
						pair = result.Pair
					}
				}
			}
		}
		t.Image, t.Format = pair.Image, string(pair.Format)
		if t.Now != nil && t.Now.candidate.Machine != nil {
			t.Differs = resolve.Differences(target, pair, t.Now.candidate.Machine, t.Now.candidate.Result.Pair)
		}
		e.Targets = append(e.Targets, t)
	}
	return nil
}

// attemptFault returns why the controller would fail a target whose call is due.
func (o *explainOptions) attemptFault(op *v1alpha3.MachineOperation, target v1alpha3.OperationTarget, pace resolve.Pace, now *explanation) resolve.Fault {
	if fault := pace.RecordFault(target); fault.Found() {
		return fault
	}
	facts, holder := resolve.Facts{}, resolve.HolderOf(op)
	if now != nil {
		if now.candidate.Machine == nil {
			return resolve.Fault{Reason: now.Reason, Message: now.Refused} // the controller cannot read it either
		}
		facts.Machine = now.candidate.Machine
		// Before an operation is marked, it takes the claims that it can get.
		if resolve.Marked(op) || o.claims.takeFault(holder, now.host).Found() {
			facts.Claim = o.claims.claim(now.host)
		}
	}
	_, fault := resolve.CallOf(holder, target, facts)
	return fault
}

// judgeClaims refuses an operation with targets that has yet to claim their hosts,
// and cannot.
func (o *explainOptions) judgeClaims(ctx context.Context, e *operationExplanation, op *v1alpha3.MachineOperation, machines map[string][]byte) error {
	if !resolve.Refusable(op) {
		return nil
	}
	hosts, err := resolve.UnclaimedHosts(op, func(name string) (*v1alpha3.Machine, error) {
		machine, _ := readMachine(machines[name])
		return machine, nil
	}, func(host resolve.Host) (resolve.Claim, error) {
		return resolve.Claim{Holder: o.claims.holder(host)}, nil
	})
	if err != nil {
		return err
	}
	if err := o.claims.load(ctx, hosts); err != nil {
		return err
	}
	shared := sharingOf(hosts)
	if err := shared.fill(ctx, o.cluster); err != nil {
		return err
	}
	for _, host := range hosts {
		fault := resolve.SharedFault(host, shared.of(host))
		if !fault.Found() {
			fault = o.claims.takeFault(resolve.HolderOf(op), host)
		}
		if fault.Found() {
			e.refuse(fault)
			return nil
		}
	}
	return nil
}

// loadClaims reads the claims on the hosts of Machines.
func (o *explainOptions) loadClaims(ctx context.Context, machines map[string][]byte) error {
	var hosts []resolve.Host
	for _, raw := range machines {
		hosts = append(hosts, hostOf(raw))
	}
	return o.claims.load(ctx, hosts)
}

// machinesOf reads the Machines of these names. Those that do not exist are not in
// the result.
func (o *explainOptions) machinesOf(ctx context.Context, names []string) (map[string][]byte, error) {
	machines := map[string][]byte{}
	if len(names) < manyTargets {
		for _, name := range names {
			if !resolve.NamesObject(name) {
				continue
			}
			raw, err := o.cluster.get(ctx, "machines", name)
			switch {
			case err == nil:
				machines[name] = raw
			case !apierrors.IsNotFound(err) || !hasName(err):
				return nil, err
			}
		}
		return machines, nil
	}
	if err := o.readAllVersions(ctx); err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	err := o.cluster.each(ctx, "machines", "", defaultChunk, func(raw []byte, _ int64) error {
		if name := nameOf(raw); wanted[name] {
			machines[name] = slices.Clone(raw) // do not keep the rest of its page
		}
		return nil
	})
	return machines, err
}
