package operation

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// mark sets the annotations without which nothing is called. An operation that
// was frozen before there were claims, or that has legacy snapshots, claims its
// hosts first; one with legacy snapshots is ours only if all its Machines have a
// provider that is registered.
func (r *Reconciler) mark(ctx context.Context, op *record) error {
	hosts, leave, err := r.openHosts(ctx, op)
	if err != nil || leave {
		return err
	}
	var taken []begin.Host
	for _, host := range hosts {
		f, err := r.hostSharedWith(ctx, host)
		if err == nil && !f.found() {
			f, err = r.takeClaim(ctx, op, host)
		}
		if err != nil {
			return err
		}
		if !f.found() {
			taken = append(taken, host)
			continue
		}
		// What was called already is followed up; a target that has no claim
		// fails before its call.
		if slices.ContainsFunc(op.Status.Targets, v1alpha3.OperationTarget.Begun) {
			continue
		}
		if err := r.refuse(ctx, op, f); err != nil {
			return err
		}
		for _, host := range taken {
			if _, err := r.giveBack(ctx, op, host); err != nil {
				return err
			}
		}
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{%q:%q,%q:"true"}}}`, op.ResourceVersion, begin.StartedAnnotation, op.UID, begin.ClaimedAnnotation)
	return r.Writer.Patch(ctx, op.was.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
}

// openHosts returns the hosts of the targets that may still be called, unless
// they are known to be claimed: those of an operation that this version has
// frozen are, and since claims are taken in the order of the targets, the last
// one tells for all. leave means that the operation is not ours.
func (r *Reconciler) openHosts(ctx context.Context, op *record) (hosts []begin.Host, leave bool, err error) {
	for _, target := range op.Status.Targets {
		host, pinned := begin.PinnedHost(target)
		if target.Phase.Finished() || target.Accepted() || op.frozen() && !pinned {
			continue // an added target fails before its call
		}
		if !op.frozen() {
			machine, err := r.readMachine(ctx, target.MachineRef)
			if apierrors.IsNotFound(err) {
				continue // its target fails for that
			}
			if err != nil {
				return nil, false, err
			}
			if !r.registered(machine) {
				return nil, true, nil
			}
			host = begin.HostOf(machine)
		}
		hosts = append(hosts, host)
	}
	if len(hosts) == 0 {
		// Without a Machine nothing says whose the targets of others are.
		return nil, !op.frozen(), nil
	}
	_, claim, err := r.readClaim(ctx, hosts[len(hosts)-1])
	if err == nil && op.frozen() && claim.Holder == begin.HolderOf(op.MachineOperation) {
		return nil, false, nil
	}
	return hosts, false, err
}

// canCall reports whether every provider that the targets are pinned to is
// registered in this process.
func (r *Reconciler) canCall(op *record) bool {
	for _, target := range op.Status.Targets {
		if target.Input != nil && target.Input.Provider != "" && r.Providers[target.Input.Provider] == nil {
			return false
		}
	}
	return true
}

func (r *Reconciler) registered(machine *v1alpha3.Machine) bool {
	provider, _ := resolve.Provider(machine)
	return r.Providers[provider] != nil
}
