package operation

import (
	"context"
	"encoding/json"
	"math"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// readClaim reads the claim on a host live. The Lease is nil if it does not exist.
func (r *Reconciler) readClaim(ctx context.Context, host resolve.Host) (*coordinationv1.Lease, resolve.Claim, error) {
	lease := &coordinationv1.Lease{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: r.ClaimNamespace, Name: host.ClaimName()}, lease)
	if apierrors.IsNotFound(err) {
		lease, err = nil, nil
	}
	return lease, resolve.ReadClaim(lease), err
}

// takeClaim takes the claim on a host for an operation that is about to start. It
// is taken by compare-and-swap: of two processes, or two operations, one wins.
func (r *Reconciler) takeClaim(ctx context.Context, op *record, host resolve.Host) (resolve.Fault, error) {
	lease, claim, err := r.readClaim(ctx, host)
	if err != nil {
		return resolve.Fault{}, err
	}
	self := resolve.HolderOf(op.MachineOperation)
	if claim.Holder == self {
		return resolve.Fault{}, nil // it was taken before a crash
	}
	f, err := claim.TakeFault(self, host.Machine, func(holder resolve.Holder) (bool, error) { return r.active(ctx, holder) })
	if err != nil {
		return resolve.Fault{}, err
	}
	if f.Reason == resolve.NameUsed {
		if remembered, changed := claim.Remembering(op.Name); changed {
			err = r.writeClaim(ctx, lease, host, remembered)
		}
	}
	if f.Found() {
		return f, err
	}
	return resolve.Fault{}, r.writeClaim(ctx, lease, host, claim.TakenBy(self))
}

// raiseClaim raises the fence of a claim above the one that the provider knows, if
// a live read shows that the operation still holds the claim. This happens after a
// user has removed the Lease: the provider remembers a higher fence than the new
// Lease has.
func (r *Reconciler) raiseClaim(ctx context.Context, op *record, host resolve.Host, known int64) (resolve.Fault, error) {
	lease, claim, err := r.readClaim(ctx, host)
	if err != nil {
		return resolve.Fault{}, err
	}
	if f := claim.HoldFault(resolve.HolderOf(op.MachineOperation), host); f.Found() {
		return f, nil
	}
	if known >= math.MaxInt32 {
		return resolve.Faultf(resolve.ProviderFailed, "the provider knows the fence %d for this host, which no claim can exceed", known), nil
	}
	if int64(claim.Fence) <= known {
		claim.Fence = int32(known) + 1
		err = r.writeClaim(ctx, lease, host, claim)
	}
	return resolve.Fault{}, err
}

// giveBack clears the holder of a claim that an operation has not used. The failure
// of the operation has to be stored first, so that it cannot use the claim any more.
// The fence stays, and the operation does not enter the history. It returns whether
// the operation held the claim.
func (r *Reconciler) giveBack(ctx context.Context, op *record, host resolve.Host) (had bool, err error) {
	lease, claim, err := r.readClaim(ctx, host)
	if err != nil || claim.Holder != resolve.HolderOf(op.MachineOperation) {
		return false, err
	}
	claim.Holder = resolve.Holder{}
	return true, r.writeClaim(ctx, lease, host, claim)
}

// writeClaim stores a claim in the Lease that was read; nil creates it. It is a
// conflict if the Lease has changed meanwhile.
func (r *Reconciler) writeClaim(ctx context.Context, lease *coordinationv1.Lease, host resolve.Host, claim resolve.Claim) error {
	var holder *string
	if text := claim.Holder.String(); text != "" {
		holder = &text
	}
	annotations := map[string]string{resolve.MachineAnnotation: host.Machine}
	if lease == nil {
		err := r.Writer.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.ClaimNamespace, Name: host.ClaimName(), Annotations: annotations},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: holder, LeaseTransitions: &claim.Fence},
		})
		if apierrors.IsAlreadyExists(err) {
			return apierrors.NewConflict(coordinationv1.Resource("leases"), host.ClaimName(), err)
		}
		return err
	}
	if history := claim.HistoryText(); history != "" {
		annotations[resolve.HistoryAnnotation] = history
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": lease.ResourceVersion, "annotations": annotations},
		"spec":     map[string]any{"holderIdentity": holder, "leaseTransitions": claim.Fence},
	})
	if err != nil {
		return err
	}
	return r.Writer.Patch(ctx, lease, client.RawPatch(types.MergePatchType, patch))
}

// active reports whether the holder of a claim still counts: it exists, is not
// being deleted, has not finished, and has started or may still start. The cache may
// say that it has finished, since a final phase never changes. The rest is read
// live.
func (r *Reconciler) active(ctx context.Context, holder resolve.Holder) (bool, error) {
	if !resolve.NamesObject(holder.Name) {
		return false, nil
	}
	cached := &unstructured.Unstructured{}
	cached.SetGroupVersionKind(operationGVK)
	err := r.Cache.Get(ctx, types.NamespacedName{Name: holder.Name}, cached)
	if err == nil && cached.GetUID() == holder.UID && phaseOf(cached).Finished() {
		return false, nil
	}
	current, err := r.read(ctx, holder.Name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	return holder.Active(current.MachineOperation, r.Clock.Now()), nil
}

func phaseOf(raw *unstructured.Unstructured) v1alpha3.OperationPhase {
	return v1alpha3.OperationPhase(text(raw.Object, "status", "phase"))
}
