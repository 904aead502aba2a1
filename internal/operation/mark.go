package operation

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// mark sets the annotations without which no provider is called. An operation that
// was frozen before claims existed, or that has legacy snapshots, claims its hosts
// first. An operation with legacy snapshots is ours only if all its Machines have a
// provider that is registered here.
func (r *Reconciler) mark(ctx context.Context, op *record) error {
	hosts, leave, err := r.unclaimedHosts(ctx, op)
	if err != nil || leave {
		return err
	}
	var taken []resolve.Host
	for _, host := range hosts {
		f, err := r.claimFault(ctx, op, host)
		if err != nil {
			return err
		}
		if !f.Found() {
			taken = append(taken, host)
			continue
		}
		// Otherwise the calls that were made are followed up, and a target without
		// a claim fails before its call.
		if !resolve.Refusable(op.MachineOperation) {
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
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{%q:%q,%q:"true"}}}`, op.ResourceVersion, resolve.StartedAnnotation, op.UID, resolve.ClaimedAnnotation)
	return r.Writer.Patch(ctx, op.raw.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
}

// claimFault takes the claim on a host that no other Machine names.
func (r *Reconciler) claimFault(ctx context.Context, op *record, host resolve.Host) (resolve.Fault, error) {
	names, err := r.sharing(ctx, host)
	if err != nil {
		return resolve.Fault{}, err
	}
	if f := resolve.SharedFault(host, names); f.Found() {
		return f, nil
	}
	return r.takeClaim(ctx, op, host)
}

// unclaimedHosts returns the hosts that the operation has yet to claim. leave means
// that the operation is not for this controller.
func (r *Reconciler) unclaimedHosts(ctx context.Context, op *record) (hosts []resolve.Host, leave bool, err error) {
	found := 0
	hosts, err = resolve.UnclaimedHosts(op.MachineOperation, func(name string) (*v1alpha3.Machine, error) {
		machine, err := r.readMachine(ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err == nil && !r.registered(machine):
			return nil, errOthers
		}
		found++
		return machine, err
	}, func(host resolve.Host) (resolve.Claim, error) {
		_, claim, err := r.readClaim(ctx, host)
		return claim, err
	})
	if errors.Is(err, errOthers) {
		return nil, true, nil
	}
	// If no Machine of legacy snapshots exists, nothing says whose operation it is.
	return hosts, err == nil && found == 0 && !resolve.Frozen(op.MachineOperation), err
}

var errOthers = errors.New("the provider of a Machine is not registered here")

// canCall reports whether every provider that the targets are pinned to is
// registered in this process.
func (r *Reconciler) canCall(op *record) bool {
	for _, target := range op.Status.Targets {
		if target.Input != nil && target.Input.Provider != "" && !r.serves(target.Input.Provider) {
			return false
		}
	}
	return true
}

func (r *Reconciler) registered(machine *v1alpha3.Machine) bool {
	provider, _ := resolve.Provider(machine)
	return r.serves(provider)
}

// serves reports whether a provider is registered in this process.
func (r *Reconciler) serves(provider string) bool { return r.Providers[provider] != nil }
