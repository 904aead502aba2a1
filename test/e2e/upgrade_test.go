package e2e

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/operation/simulated"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// Operations that the version before has frozen have no claim; they go on, and
// claim their hosts before the next call.
func TestUpgrade(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for name, test := range map[string]struct {
		marked, attempted, legacy bool
	}{"frozen": {}, "marked": {marked: true}, "attempted": {marked: true, attempted: true}, "a legacy snapshot": {legacy: true}} {
		t.Run(name, func(t *testing.T) {
			r, dir := newReconciler(t, c, asRead)
			rack := addRack(t, c, "-a", "-b")
			u := object(t, "machineoperations", uniqueName(), "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: "+rack+"}}}")
			var targets []any
			for _, suffix := range []string{"-a", "-b"} {
				m := get(t, c, "machines", rack+suffix)
				id, _, _ := unstructured.NestedString(m.Object, "spec", "host", "external", "providerID")
				input := map[string]any{"hostImage": "img-old", "provisioningFormat": "CloudInit", "machineUID": string(m.GetUID()), "provider": simulated.Name, "providerID": id}
				if test.legacy {
					input = map[string]any{"hostImage": "img-old"}
				}
				target := map[string]any{"machineRef": m.GetName(), "phase": "Pending", "input": input}
				if test.attempted {
					target["attempts"], target["phase"] = int64(1), "InProgress"
				}
				targets = append(targets, target)
			}
			status := map[string]any{"phase": "Pending", "targets": targets}
			if !test.legacy {
				status["conditions"] = []any{map[string]any{"type": "Frozen", "status": "True", "reason": "PairFrozen", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}}
			}
			u.Object["status"] = status
			op := store(t, c, "machineoperations", u)
			if test.marked {
				_, err := c.of("machineoperations").Patch(t.Context(), op.GetName(), types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+resolve.StartedAnnotation+`":"`+string(op.GetUID())+`"}}}`), metav1.PatchOptions{})
				require.NoError(t, err)
			}
			_, err := r.Reconcile(t.Context(), requestFor(op.GetName()))
			require.NoError(t, err)
			_, claim := claimOf(t, c, rack+"-b")
			require.Equal(t, op.GetName(), claim.Holder.Name, "claimed with the mark")
			require.Zero(t, actsOn(t, dir, rack+"-a"))
			done := reconcileUntilFinished(t, c, r, op.GetName())
			require.Equal(t, "Complete", phase(done), message(done))
			for _, suffix := range []string{"-a", "-b"} {
				require.Equal(t, 1, actsOn(t, dir, rack+suffix))
				_, claim := claimOf(t, c, rack+suffix)
				require.Equal(t, resolve.Claim{Holder: resolve.Holder{Name: op.GetName(), UID: op.GetUID()}, Fence: 1}, claim)
			}
		})
	}
	t.Run("behind another", func(t *testing.T) {
		r, dir := newReconciler(t, c, asRead)
		machine := newMachine(t, c)
		holder := newOperation(t, c, machine)
		_, err := r.Reconcile(t.Context(), requestFor(holder))
		require.NoError(t, err)
		old := store(t, c, "machineoperations", object(t, "machineoperations", uniqueName(),
			"{spec: {operationKind: HostReplace, machineRef: "+machine+"}, status: {phase: Pending, targets: [{machineRef: "+machine+", input: {hostImage: img-old}}]}}"))
		refused := reconcileUntilFinished(t, c, r, old.GetName())
		require.Equal(t, "OtherOperation", reason(refused), message(refused))
		require.Equal(t, "Complete", phase(reconcileUntilFinished(t, c, r, holder)))
		require.Equal(t, 1, actsOn(t, dir, machine))
	})
}

// A legacy snapshot in a batch is resolved and gated right before its own call,
// not when the batch began.
func TestLegacySnapshotInABatch(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	r, dir := newReconciler(t, c, asRead)
	oneAfterTheOther(r)
	rack := addRack(t, c, "-a", "-b")
	op := store(t, c, "machineoperations", object(t, "machineoperations", uniqueName(), "{spec: {operationKind: HostReplace, parameters: {maxInFlight: '2', maxFailures: '2'}, machineSelector: {matchLabels: {rack: "+rack+"}}}, "+
		"status: {phase: Pending, targets: [{machineRef: "+rack+"-a, input: {hostImage: img-old}}, {machineRef: "+rack+"-b, input: {hostImage: img-old}}]}}"))
	r.Providers = map[string]operation.Provider{simulated.Name: stopper{r.Providers[simulated.Name], func() {
		require.NoError(t, patchSpec(t, c, rack+"-b", `{"host":{"provisioningFormat":"Ignition"}}`))
	}}}
	done := reconcileUntilFinished(t, c, r, op.GetName())
	require.Equal(t, "IgnitionNotDeliverable", targetOf(t, done, 1)["stage"], "%v", done.Object["status"])
	require.Equal(t, []int{1, 0}, []int{actsOn(t, dir, rack+"-a"), actsOn(t, dir, rack+"-b")})
	_, claim := claimOf(t, c, rack+"-b")
	require.Equal(t, resolve.Holder{}, claim.Holder, "given back")
}

// A process that was paused while it started, or failed, an operation does not
// give back what another process has claimed for the same operation since.
func TestStaleProcessKeepsTheClaim(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for name, paused := range map[string]func(*unstructured.Unstructured) bool{
		"while it starts": func(op *unstructured.Unstructured) bool { return len(targetsOf(op)) == 0 },
		"before its call": func(op *unstructured.Unstructured) bool { return len(targetsOf(op)) == 1 },
	} {
		t.Run(name, func(t *testing.T) {
			first, dir := newReconciler(t, c, asRead)
			machine := newMachine(t, c)
			op := newOperation(t, c, machine)
			for !paused(get(t, c, "machineoperations", op)) || get(t, c, "machineoperations", op).GetAnnotations() == nil && name == "before its call" {
				_, err := first.Reconcile(t.Context(), requestFor(op))
				require.NoError(t, err)
			}
			// Its next read of the Machine is the moment: another process carries
			// the operation out, and then the Machine cannot be replaced any more.
			second, _ := newReconciler(t, c, asRead)
			second.Providers = first.Providers
			once := false
			first.Live = reader{Reader: first.Live, get: func(_ context.Context, _ ctrlclient.ObjectKey, o ctrlclient.Object) (bool, error) {
				if _, ok := o.(*v1alpha3.Machine); ok && !once {
					once = true
					require.Equal(t, "Complete", phase(reconcileUntilFinished(t, c, second, op)))
					require.NoError(t, patchSpec(t, c, machine, `{"host":{"provisioningFormat":"Ignition","external":{"providerID":null}},"configurationRef":{"name":"nope"}}`))
				}
				return false, nil
			}}
			lease, _ := claimOf(t, c, machine)
			_, _ = first.Reconcile(t.Context(), requestFor(op))
			returned(t, first)
			require.True(t, once)
			_, _ = first.Reconcile(t.Context(), requestFor(op))
			done := get(t, c, "machineoperations", op)
			require.Equal(t, "Complete", phase(done), message(done))
			stored, err := claims(t, c).Get(t.Context(), lease, metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, op, resolve.ReadClaim(stored).Holder.Name, "it has used the claim")
			require.Equal(t, 1, actsOn(t, dir, machine))
		})
	}
}

func targetsOf(op *unstructured.Unstructured) []any {
	targets, _, _ := unstructured.NestedSlice(op.Object, "status", "targets")
	return targets
}
