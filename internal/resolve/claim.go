package resolve

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// DefaultClaimNamespace is where claims are kept unless a flag says otherwise.
const DefaultClaimNamespace = "hostformat-system"

// Annotations of a claim.
const (
	// MachineAnnotation names the Machine that the host was last claimed for.
	MachineAnnotation = "hostformat.unbounded-cloud.io/machine"
	// HistoryAnnotation lists the former holders, newest first.
	HistoryAnnotation = "hostformat.unbounded-cloud.io/operations"
)

// maxHistory is how many former holders a claim remembers.
const maxHistory = 64

// Host identifies what a claim is on, and the Machine that it is taken for.
type Host struct {
	Machine              string
	UID                  types.UID // of the Machine
	Provider, ProviderID string
}

// HostOf returns the host that a Machine names.
func HostOf(machine *v1alpha3.Machine) Host {
	provider, id := Provider(machine)
	return Host{Machine: machine.Name, UID: machine.UID, Provider: provider, ProviderID: id}
}

// PinnedHost returns the host that a target of an operation is pinned to, and
// whether it is pinned at all: targets that predate the pins are not.
func PinnedHost(target v1alpha3.OperationTarget) (Host, bool) {
	if target.Input == nil || target.Input.MachineUID == "" || target.Input.Provider == "" {
		return Host{}, false
	}
	return Host{target.MachineRef, target.Input.MachineUID, target.Input.Provider, target.Input.ProviderID}, true
}

// ClaimName returns the name of the Lease that is the claim on the host. Two
// Machines that name one host have the same one. A host without a providerID is
// known by the UID of its Machine.
func (h Host) ClaimName() string {
	identity := "machine\x00" + string(h.UID)
	if h.ProviderID != "" {
		identity = "host\x00" + h.Provider + "\x00" + h.ProviderID
	}
	sum := sha256.Sum256([]byte(identity))
	return "host-" + hex.EncodeToString(sum[:16])
}

// Holder is an operation that holds, or held, a claim. The zero value stands for a
// claim without a holder.
type Holder struct {
	Name string
	UID  types.UID
}

// HolderOf returns the operation as a holder.
func HolderOf(op *v1alpha3.MachineOperation) Holder { return Holder{op.Name, op.UID} }

// String returns the holder as a claim records it: NAME/UID.
func (h Holder) String() string {
	if h == (Holder{}) {
		return ""
	}
	return h.Name + "/" + string(h.UID)
}

// Active reports whether the holder of a claim keeps other operations from it.
// stored is the operation with the name of the holder; nil if it does not exist. A
// holder is active if stored has its UID, is not being deleted, has not finished,
// and has started or may still start.
func (h Holder) Active(stored *v1alpha3.MachineOperation, now time.Time) bool {
	if stored == nil || stored.UID != h.UID || stored.DeletionTimestamp != nil || stored.Status.Phase.Finished() {
		return false
	}
	return len(stored.Status.Targets) > 0 || now.Sub(stored.CreationTimestamp.Time) <= maxAge
}

func parseHolder(text string) Holder {
	name, uid, _ := strings.Cut(text, "/")
	return Holder{name, types.UID(uid)}
}

// Claim is the right of one operation at a time to replace a host.
type Claim struct {
	// Holder is the operation that has it.
	Holder Holder
	// Fence grows with each new holder. Providers refuse a lower one than they
	// have seen, so that a call that was delayed cannot undo a later one. The
	// first holder has 1.
	Fence int32
	// History holds former holders that did not give the claim back, newest
	// first.
	History []Holder
}

// ReadClaim returns the claim that a Lease records. A nil Lease is a claim that was
// never taken.
func ReadClaim(lease *coordinationv1.Lease) Claim {
	c := Claim{}
	if lease == nil {
		return c
	}
	if lease.Spec.HolderIdentity != nil {
		c.Holder = parseHolder(*lease.Spec.HolderIdentity)
	}
	if lease.Spec.LeaseTransitions != nil {
		c.Fence = *lease.Spec.LeaseTransitions
	}
	for text := range strings.FieldsSeq(lease.Annotations[HistoryAnnotation]) {
		c.History = append(c.History, parseHolder(text))
	}
	return c
}

// HistoryText returns the history as HistoryAnnotation keeps it: former holders
// separated by spaces.
func (c Claim) HistoryText() string {
	texts := make([]string, len(c.History))
	for i, holder := range c.History {
		texts[i] = holder.String()
	}
	return strings.Join(texts, " ")
}

// NameFault reports why the name of an operation is used up on this host:
// another operation of that name holds the claim, or has held it and replaced
// the host, or may have. GitOps tools delete an operation and create it again,
// which is not a new order.
func (c Claim) NameFault(op Holder, machine string) Fault {
	for _, former := range append([]Holder{c.Holder}, c.History...) {
		if former.Name == op.Name && former.UID != op.UID {
			return Faultf(NameUsed, "another MachineOperation %q, with UID %s, has claimed the host of Machine %q before, and a name replaces a host once; to replace it again, create an operation with another name, for example with metadata.generateName",
				former.Name, former.UID, machine)
		}
	}
	return Fault{}
}

// TakeFault reports why an operation may not take the claim: its name is used
// up, or another operation that is still active holds it. active reports whether
// a holder counts, as Holder.Active does. It is called only if that decides, and
// its error is returned.
func (c Claim) TakeFault(op Holder, machine string, active func(Holder) (bool, error)) (Fault, error) {
	if c.Holder == op {
		return Fault{}, nil
	}
	if fault := c.NameFault(op, machine); fault.Found() || c.Holder == (Holder{}) {
		return fault, nil
	}
	held, err := active(c.Holder)
	if err != nil || !held {
		return Fault{}, err
	}
	return c.HeldFault(machine), nil
}

// HoldFault reports why an operation that has started may not call the provider
// for a host: it does not hold the claim any more.
func (c Claim) HoldFault(op Holder, host Host) Fault {
	switch c.Holder {
	case op:
		return Fault{}
	case Holder{}:
		return Faultf(ClaimLost, "the claim of the operation on the host was removed (Lease %s); the provider was not called", host.ClaimName())
	default:
		return Faultf(ClaimLost, "MachineOperation %q has claimed the host meanwhile (Lease %s); the provider was not called", c.Holder.Name, host.ClaimName())
	}
}

// HeldFault reports that another operation that has not finished holds the claim.
func (c Claim) HeldFault(machine string) Fault {
	return Faultf(OtherOperation, "MachineOperation %q is replacing the host of Machine %q and has not finished; create a new operation when it has", c.Holder.Name, machine)
}

// TakenBy returns the claim with a new holder, the next fence, and the holder
// before in the history.
func (c Claim) TakenBy(op Holder) Claim {
	history := c.History
	if c.Holder != (Holder{}) {
		history = append([]Holder{c.Holder}, history...)
	}
	return Claim{op, c.Fence + 1, history[:min(len(history), maxHistory)]}
}

// Remembering returns the claim with the name of an operation that was refused
// for it at the head of the history, and whether that changes anything: a name
// that is used again and again is not forgotten. The UID stays that of the
// operation that used the name first.
func (c Claim) Remembering(name string) (_ Claim, changed bool) {
	for i, former := range c.History {
		if former.Name == name {
			history := append([]Holder{former}, c.History[:i]...)
			c.History = append(history, c.History[i+1:]...)
			return c, i > 0
		}
	}
	return c, false
}

// SharedFault reports that several Machines name one host. Otherwise a user who
// may create Machines could aim an operation at the host of another Machine.
func SharedFault(host Host, machines []string) Fault {
	if host.ProviderID == "" {
		return Fault{}
	}
	for _, other := range machines {
		if other != host.Machine {
			return Faultf(HostShared, "Machines %q and %q both name providerID %q of provider %q; correct the wrong one, then create a new operation",
				min(host.Machine, other), max(host.Machine, other), Excerpt(host.ProviderID), Excerpt(host.Provider))
		}
	}
	return Fault{}
}
