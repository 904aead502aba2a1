package operation

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// fault is why something may not be done: a reason, and a sentence. Its zero
// value is no fault.
type fault struct {
	reason  resolve.Reason
	message string
}

func faultOf(reason resolve.Reason, message string) fault { return fault{reason, message} }

func (f fault) found() bool { return f.reason != "" }

// readClaim reads the claim on a host live. The Lease is nil where there is none.
func (r *Reconciler) readClaim(ctx context.Context, host begin.Host) (*coordinationv1.Lease, begin.Claim, error) {
	lease := &coordinationv1.Lease{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: r.ClaimNamespace, Name: host.ClaimName()}, lease)
	if apierrors.IsNotFound(err) {
		lease, err = nil, nil
	}
	return lease, begin.ReadClaim(lease), err
}

// takeClaim takes the claim on a host for an operation that is about to start. It
// is taken by compare-and-swap: of two processes, or two operations, one wins.
func (r *Reconciler) takeClaim(ctx context.Context, op *record, host begin.Host) (fault, error) {
	lease, claim, err := r.readClaim(ctx, host)
	if err != nil {
		return fault{}, err
	}
	self := begin.HolderOf(op.MachineOperation)
	if claim.Holder == self {
		return fault{}, nil // a crash happened after it was taken
	}
	reason, message, err := claim.TakeFault(self, host.Machine, func(holder begin.Holder) (bool, error) { return r.active(ctx, holder) })
	if err != nil {
		return fault{}, err
	}
	if reason == begin.NameUsed {
		if remembered, changed := claim.Remembering(op.Name); changed {
			err = r.writeClaim(ctx, lease, host, remembered)
		}
	}
	if reason != "" {
		return fault{reason, message}, err
	}
	return fault{}, r.writeClaim(ctx, lease, host, claim.TakenBy(self))
}

// fenceOf returns the fence of an operation that is about to call a provider. A
// claim that is no longer the operation's own is lost, even one that nobody has:
// somebody may have removed it since the host is not to be replaced.
func (r *Reconciler) fenceOf(ctx context.Context, op *record, host begin.Host) (fence int64, f fault, err error) {
	_, claim, err := r.readClaim(ctx, host)
	if err == nil {
		f = faultOf(claim.HoldFault(begin.HolderOf(op.MachineOperation), host))
	}
	return int64(claim.Fence), f, err
}

// raiseClaim raises the fence of a claim above one that the provider knows, if a
// live read shows that the operation still has the claim: after somebody removed
// the Lease, the provider remembers more than it says.
func (r *Reconciler) raiseClaim(ctx context.Context, op *record, host begin.Host, known int64) (fault, error) {
	lease, claim, err := r.readClaim(ctx, host)
	if err != nil {
		return fault{}, err
	}
	if f := faultOf(claim.HoldFault(begin.HolderOf(op.MachineOperation), host)); f.found() {
		return f, nil
	}
	if known >= math.MaxInt32 {
		return fault{begin.ProviderFailed, fmt.Sprintf("the provider knows the fence %d for this host, which no claim can exceed", known)}, nil
	}
	if int64(claim.Fence) <= known {
		claim.Fence = int32(known) + 1
		err = r.writeClaim(ctx, lease, host, claim)
	}
	return fault{}, err
}

// giveBack clears the holder of a claim that an operation has not used, once the
// operation can no longer use it: that it has failed is stored. The fence stays,
// and the operation is in no history. It returns whether it had the claim.
func (r *Reconciler) giveBack(ctx context.Context, op *record, host begin.Host) (had bool, err error) {
	lease, claim, err := r.readClaim(ctx, host)
	if err != nil || claim.Holder != begin.HolderOf(op.MachineOperation) {
		return false, err
	}
	claim.Holder = begin.Holder{}
	return true, r.writeClaim(ctx, lease, host, claim)
}

// writeClaim stores a claim over the Lease that was read; nil creates it. Whoever
// else has written it meanwhile makes this a conflict.
func (r *Reconciler) writeClaim(ctx context.Context, lease *coordinationv1.Lease, host begin.Host, claim begin.Claim) error {
	var holder *string
	if text := claim.Holder.String(); text != "" {
		holder = &text
	}
	annotations := map[string]string{begin.MachineAnnotation: host.Machine}
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
		annotations[begin.HistoryAnnotation] = history
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
// being deleted, has not finished, and may still start if it has not. That it has
// finished may come from the cache, since a final phase is never turned back;
// anything else is read live.
func (r *Reconciler) active(ctx context.Context, holder begin.Holder) (bool, error) {
	if !begin.NamesObject(holder.Name) {
		return false, nil
	}
	cached := &unstructured.Unstructured{}
	cached.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperation"))
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
