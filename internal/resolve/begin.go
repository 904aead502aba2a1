package resolve

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// StartedAnnotation holds the UID of an operation that has started. Backups and
// manifests that are applied again keep annotations and lose the status. The
// annotation identifies such a copy of an operation.
const StartedAnnotation = "hostformat.unbounded-cloud.io/started"

// ClaimedAnnotation says that an operation has claimed its hosts. It is written
// together with StartedAnnotation. Operations that started before claims existed
// lack it, and claim their hosts before they continue.
const ClaimedAnnotation = "hostformat.unbounded-cloud.io/claimed"

// Marked reports whether an operation has started and claimed its hosts. From
// then on, the provider may be called for its targets.
func Marked(op *v1alpha3.MachineOperation) bool {
	_, started := op.Annotations[StartedAnnotation]
	_, claimed := op.Annotations[ClaimedAnnotation]
	return started && claimed
}

// maxAge is how old an operation may be when it starts: old enough to survive a
// controller that is restarted or away for a while. An older order may no longer
// be wanted.
const maxAge = time.Hour

// Candidate is a Machine that an operation would replace, with what was read
// about it.
type Candidate struct {
	Machine *v1alpha3.Machine
	// Sharing names Machines that name the same host. Its own name may be among
	// them, and other candidates may be missing.
	Sharing []string
	// Result is what the Machine resolves to, unless Fault says why it does not.
	Result Result
	Fault  Fault
}

// Start is the decision about an operation that has not started.
type Start struct {
	// Fault refuses the operation. Without one it may claim its hosts and start.
	Fault Fault
	// Targets holds the fault of each candidate, in their order, if the pairs are
	// to be recorded although the operation is refused. Otherwise it is nil.
	Targets []Fault
}

// Begin decides whether an operation may start, given all Machines that it names
// or selects. An operation replaces all its hosts or none.
func Begin(op *v1alpha3.MachineOperation, candidates []Candidate, now time.Time) Start {
	if fault := SelectedFault(op, candidates, now); fault.Found() {
		return Start{Fault: fault}
	}
	first := map[string]string{} // candidate of each host, by the name of the claim
	for _, c := range candidates {
		host, sharing := HostOf(c.Machine), c.Sharing
		if other, known := first[host.ClaimName()]; known {
			sharing = []string{other}
		}
		first[host.ClaimName()] = host.Machine
		if fault := SharedFault(host, sharing); fault.Found() {
			return Start{Fault: fault}
		}
	}
	for _, c := range candidates {
		if c.Fault.Found() {
			return Start{Fault: c.Fault.Named(c.Machine.Name)}
		}
	}
	return delivery(candidates)
}

// delivery refuses an operation if one pair cannot be delivered: the hosts of all
// other candidates are spared. The pairs are recorded, to show what was resolved.
func delivery(candidates []Candidate) (start Start) {
	for _, c := range candidates {
		if start.Fault = PairFault(c.Result.Pair); !start.Fault.Found() {
			continue
		}
		for _, other := range candidates {
			fault := PairFault(other.Result.Pair)
			if !fault.Found() {
				fault = Faultf(Halted, "not replaced: the pair of Machine %q cannot be delivered, and an operation that cannot replace all its hosts replaces none", c.Machine.Name)
			}
			start.Targets = append(start.Targets, fault)
		}
		if len(candidates) > 1 {
			start.Fault.Message += "; no host was replaced: correct that Machine or select without it, then create a new operation"
			start.Fault = start.Fault.Named(c.Machine.Name)
		}
		return start
	}
	return Start{}
}

// SelectedFault reports why an operation may not start, from itself and the metadata
// of its Machines. Begin checks it first: an operation that it refuses needs no further
// reads.
func SelectedFault(op *v1alpha3.MachineOperation, candidates []Candidate, now time.Time) Fault {
	if fault := SelectionFault(op, now); fault.Found() {
		return fault
	}
	if len(candidates) == 0 {
		return Fault{NothingSelected, "no Machine matches spec.machineSelector; create a new operation when one does"}
	}
	for _, c := range candidates {
		if op.CreationTimestamp.Before(&c.Machine.CreationTimestamp) {
			return Faultf(MachineIsNewer, "Machine %q was created after this operation, and an operation does not wait for Machines; create a new operation", c.Machine.Name)
		}
	}
	return Fault{}
}

// SelectionFault reports why an operation may not start because of its age, its
// selection of Machines, or its parameters. It needs no Machines.
func SelectionFault(op *v1alpha3.MachineOperation, now time.Time) Fault {
	selector := op.Spec.MachineSelector
	switch {
	case now.Sub(op.CreationTimestamp.Time) > maxAge:
		return Faultf(TooOld, "the operation was not started within %s and will not run; create a new operation", maxAge)
	case (op.Spec.MachineRef == "") == (selector == nil):
		return Fault{InvalidSelection, "exactly one of spec.machineRef and spec.machineSelector must say which Machines to replace; create a new operation with one of them"}
	case selector != nil && len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0:
		return Fault{InvalidSelection, "an empty spec.machineSelector would replace every host of the fleet; create a new operation that selects by at least one label"}
	case selector != nil:
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			return Fault{InvalidSelection, "spec.machineSelector is not a label selector: " + err.Error()}
		}
	}
	_, fault := ReadParameters(op.Spec.Parameters)
	if fault.Found() {
		fault.Message += "; create a new operation with a correct value"
	}
	return fault
}

// MissingFault reports that the Machine that an operation names does not exist.
// No controller starts such an operation.
func MissingFault(machine string) Fault {
	return Faultf(MachineNotFound, "Machine %q does not exist, and an operation does not wait for it; create a new operation when it does", machine)
}

// CopyFault reports that an operation is a copy of one that has started, or has
// lost its record.
func CopyFault(op *v1alpha3.MachineOperation) Fault {
	started, marked := op.Annotations[StartedAnnotation]
	switch {
	case marked && started != string(op.UID):
		return Faultf(RestoredCopy,
			"this is a copy of the operation with UID %s, which has started: its annotation %s says so; create a new operation if the host is to be replaced again", started, StartedAnnotation)
	case marked && len(op.Status.Targets) == 0:
		return Fault{RestoredCopy, "this operation has started and lost its record, as a restore from a backup does; whether hosts were replaced is not known: inspect them, then create a new operation"}
	}
	return Fault{}
}

// UnclaimedHosts returns the hosts that an operation with targets may still
// replace and does not hold: it is from before claims existed, or has legacy
// snapshots. machineOf returns a Machine, nil if it does not exist, and claimOf
// the claim on a host. Their errors are returned.
func UnclaimedHosts(op *v1alpha3.MachineOperation, machineOf func(name string) (*v1alpha3.Machine, error), claimOf func(Host) (Claim, error)) ([]Host, error) {
	frozen := Frozen(op)
	var hosts []Host
	for _, target := range op.Status.Targets {
		host, pinned := PinnedHost(target)
		if target.Phase.Finished() || target.Accepted() || frozen && !pinned {
			continue // another client has added this target, which fails before its call
		}
		if !frozen {
			machine, err := machineOf(target.MachineRef)
			if err != nil {
				return nil, err
			}
			if machine == nil {
				continue // its target fails
			}
			host = HostOf(machine)
		}
		hosts = append(hosts, host)
	}
	if !frozen || len(hosts) == 0 {
		return hosts, nil
	}
	// Claims are taken in the order of the targets: the last one is enough.
	claim, err := claimOf(hosts[len(hosts)-1])
	if err == nil && claim.Holder == HolderOf(op) {
		hosts = nil
	}
	return hosts, err
}

// Refusable reports whether an operation with targets can still be refused as a
// whole: no provider was called for it.
func Refusable(op *v1alpha3.MachineOperation) bool {
	for i := range op.Status.Targets {
		if op.Status.Targets[i].Begun() {
			return false
		}
	}
	return true
}

// Frozen reports whether the pairs of an operation are frozen: its condition
// Frozen is True.
func Frozen(op *v1alpha3.MachineOperation) bool {
	return meta.IsStatusConditionTrue(op.Status.Conditions, v1alpha3.ConditionFrozen)
}

// NamesObject reports whether a reference can be the name of an object at all.
// The API server rejects any other name in a path, which would look like a
// failed read, although no such object can exist.
func NamesObject(ref string) bool { return len(validation.IsDNS1123Subdomain(ref)) == 0 }
