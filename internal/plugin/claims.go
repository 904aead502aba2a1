package plugin

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// claimExplanation says which operation may replace a host now.
type claimExplanation struct {
	Lease  string `json:"lease"`  // the name that it has, or would have
	Holder string `json:"holder"` // the operation that is not finished and holds the claim; empty if the claim is free
	Fence  int32  `json:"fence"`

	claim  resolve.Claim
	stored bool // there is such a Lease
}

// claims are the claims on hosts, as far as the user may read them. The rest can be
// explained without them.
type claims struct {
	cluster    *cluster
	namespace  string
	unknown    string // why claims are not known; empty if they are
	byLease    map[string]resolve.Claim
	operations map[string]*v1alpha3.MachineOperation // that hold one
	exists     bool                                  // the namespace
}

func newClaims(c *cluster, namespace string) *claims {
	return &claims{cluster: c, namespace: namespace, byLease: map[string]resolve.Claim{}, operations: map[string]*v1alpha3.MachineOperation{}}
}

// load reads the claims on hosts and the operations that hold them. The error is
// a failure to read. A missing permission is none: it is kept in unknown.
func (c *claims) load(ctx context.Context, hosts []resolve.Host) error {
	if c.unknown != "" {
		return nil
	}
	wanted := map[string]bool{}
	for _, host := range hosts {
		wanted[host.ClaimName()] = true
	}
	err := c.loadLeases(ctx, wanted)
	if apierrors.IsForbidden(err) {
		c.unknown = fmt.Sprintf("Leases in namespace %s may not be read (needs get and list on leases of coordination.k8s.io)", c.namespace)
		return nil
	}
	if err != nil || c.unknown != "" {
		return err
	}
	holders := map[string]bool{}
	for name := range wanted {
		if holder := c.byLease[name].Holder.Name; resolve.NamesObject(holder) { // MachineOperations are named as Machines are
			holders[holder] = true
		}
	}
	err = c.loadOperations(ctx, holders)
	if apierrors.IsForbidden(err) {
		c.unknown = "MachineOperations may not be read (needs get and list on machineoperations of unbounded-cloud.io)"
		return nil
	}
	return err
}

func (c *claims) loadLeases(ctx context.Context, wanted map[string]bool) error {
	folder := "/apis/coordination.k8s.io/v1/namespaces/" + c.namespace + "/leases"
	keep := func(raw []byte) error {
		lease := &coordinationv1.Lease{}
		if err := json.Unmarshal(raw, lease); err != nil {
			return fmt.Errorf("a Lease in namespace %s cannot be read: %w", c.namespace, err)
		}
		c.exists = true
		if wanted[lease.Name] {
			c.byLease[lease.Name] = resolve.ReadClaim(lease)
		}
		return nil
	}
	if len(wanted) >= manyTargets {
		err := c.cluster.pages(ctx, "leases", defaultChunk, func(raw []byte, _ int64) error { return keep(raw) },
			func() *rest.Request { return c.cluster.client.Get().AbsPath(folder) })
		if err != nil {
			return err
		}
	} else {
		for name := range wanted {
			raw, err := answer(ctx, c.cluster.client.Get().AbsPath(folder, name))
			if err == nil {
				err = keep(raw)
			}
			if err != nil && (!apierrors.IsNotFound(err) || !hasName(err)) {
				return err
			}
		}
	}
	if c.exists || len(wanted) == 0 {
		return nil
	}
	// There is no Lease: the host was never claimed, or claims are kept in another
	// namespace. A user who may not read the namespace is assumed to know it.
	_, err := answer(ctx, c.cluster.client.Get().AbsPath("/api/v1/namespaces", c.namespace))
	switch {
	case apierrors.IsNotFound(err):
		c.unknown = fmt.Sprintf("there is no namespace %s (--claim-namespace names the one of the controller)", c.namespace)
	case err != nil && !apierrors.IsForbidden(err):
		return err
	}
	c.exists = true
	return nil
}

func (c *claims) loadOperations(ctx context.Context, wanted map[string]bool) error {
	keep := func(raw []byte) error {
		var full struct { // only the fields that decide whether it is active
			metav1.ObjectMeta `json:"metadata"`
			Status            struct {
				Phase   v1alpha3.OperationPhase `json:"phase"`
				Targets []struct{}              `json:"targets"`
			} `json:"status"`
		}
		if err := json.Unmarshal(raw, &full); err != nil {
			return fmt.Errorf("MachineOperation %s, which holds a claim, cannot be read: %w", nameOf(raw), err)
		}
		kept := &v1alpha3.MachineOperation{}
		kept.UID, kept.CreationTimestamp, kept.DeletionTimestamp = full.UID, full.CreationTimestamp, full.DeletionTimestamp
		kept.Status.Phase, kept.Status.Targets = full.Status.Phase, make([]v1alpha3.OperationTarget, min(len(full.Status.Targets), 1))
		c.operations[full.Name] = kept
		return nil
	}
	if len(wanted) >= manyTargets {
		return c.cluster.each(ctx, "machineoperations", "", defaultChunk, func(raw []byte, _ int64) error {
			if !wanted[nameOf(raw)] {
				return nil
			}
			return keep(raw)
		})
	}
	for name := range wanted {
		if c.operations[name] != nil {
			continue
		}
		raw, err := c.cluster.get(ctx, "machineoperations", name)
		if err == nil {
			err = keep(raw)
		}
		if err != nil && (!apierrors.IsNotFound(err) || !hasName(err)) {
			return err
		}
	}
	return nil
}

// active reports whether a holder counts, given what was loaded.
func (c *claims) active(holder resolve.Holder) bool {
	return holder.Active(c.operations[holder.Name], time.Now())
}

// of explains the claim on a host; nil if it is not known.
func (c *claims) of(host resolve.Host) *claimExplanation {
	if c.unknown != "" {
		return nil
	}
	name := host.ClaimName()
	claim, stored := c.byLease[name]
	e := &claimExplanation{Lease: name, Fence: claim.Fence, claim: claim, stored: stored}
	if c.active(claim.Holder) {
		e.Holder = claim.Holder.Name
	}
	return e
}

// holder returns the operation that holds the claim on a host, even if it has
// finished.
func (c *claims) holder(host resolve.Host) resolve.Holder { return c.byLease[host.ClaimName()].Holder }

// takeFault returns why an operation may not take the claim on a host, as far as
// that is known.
func (c *claims) takeFault(op resolve.Holder, host resolve.Host) resolve.Fault {
	if c.unknown != "" {
		return resolve.Fault{}
	}
	fault, _ := c.byLease[host.ClaimName()].TakeFault(op, host.Machine, func(h resolve.Holder) (bool, error) { return c.active(h), nil })
	return fault
}

// claim returns the claim on a host; nil if it is not known.
func (c *claims) claim(host resolve.Host) *resolve.Claim {
	if c.unknown != "" {
		return nil
	}
	claim := c.byLease[host.ClaimName()]
	return &claim
}
