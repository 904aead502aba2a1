package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	leases "k8s.io/client-go/kubernetes/typed/coordination/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/internal/operation/simulated"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

func asRead(live ctrlclient.Reader) ctrlclient.Reader { return live }

// createOperation creates a HostReplace with the fields of a spec besides its kind.
func createOperation(t *testing.T, c client, name, fields string) *unstructured.Unstructured {
	t.Helper()
	op, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, "+fields+"}"), metav1.CreateOptions{})
	require.NoError(t, err)
	return op
}

// actsOn counts how often a Machine was replaced, by records in a folder.
func actsOn(t *testing.T, dir, machine string) int {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	acts := 0
	for _, path := range paths {
		if filepath.Ext(path) != "" {
			continue
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var record simulated.Record
		require.NoError(t, json.Unmarshal(text, &record))
		if record.Machine == machine {
			acts += record.DestructiveCalls
		}
	}
	return acts
}

func claims(t asserting, c client) leases.LeaseInterface {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(c.cluster.Config)
	require.NoError(t, err)
	return clientset.CoordinationV1().Leases(resolve.DefaultClaimNamespace)
}

// claimOf returns the name of the claim on the host of a Machine, and what it says.
func claimOf(t asserting, c client, machine string) (string, resolve.Claim) {
	t.Helper()
	m := get(t, c, "machines", machine)
	id, _, _ := unstructured.NestedString(m.Object, "spec", "host", "external", "providerID")
	name := resolve.Host{UID: m.GetUID(), Provider: simulated.Name, ProviderID: id}.ClaimName()
	lease, err := claims(t, c).Get(context.Background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return name, resolve.Claim{}
	}
	require.NoError(t, err)
	return name, resolve.ReadClaim(lease)
}

// A name replaces a host once, however often an operation of that name is
// deleted and created again, and whoever replaces the host in between.
func TestNameReplacesAHostOnce(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	r, dir := newReconciler(t, c, asRead)
	for how, test := range map[string]struct {
		fields string
		others int // a claim remembers 64
	}{"by name": {"machineRef: NAME", roundsOf(3, 70)}, "by selector": {"machineSelector: {matchLabels: {rack: NAME}}", 2}} {
		t.Run(how, func(t *testing.T) {
			machine := uniqueName()
			u := object(t, "machines", machine, "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}")
			u.SetLabels(map[string]string{"rack": machine})
			store(t, c, "machines", u)
			name := uniqueName()
			apply := func(name string) *unstructured.Unstructured {
				createOperation(t, c, name, strings.ReplaceAll(test.fields, "NAME", machine))
				return reconcileUntilFinished(t, c, r, name)
			}
			remove := func(name string) {
				require.NoError(t, c.of("machineoperations").Delete(t.Context(), name, metav1.DeleteOptions{}))
			}
			first := apply(name)
			require.Equal(t, "Complete", phase(first), message(first))
			want := 1
			refused := func() {
				t.Helper()
				remove(name)
				again := apply(name)
				require.Equal(t, []string{"Failed", "NameUsed"}, []string{phase(again), reason(again)}, message(again))
				require.Contains(t, message(again), `create an operation with another name, for example with metadata.generateName`)
				require.Contains(t, message(again), "UID "+string(first.GetUID()), "it names the operation that replaced the host")
				require.Equal(t, want, actsOn(t, dir, machine))
			}
			refused() // alone
			refused() // what was refused is no new order either
			for range test.others {
				other := uniqueName()
				require.Equal(t, "Complete", phase(apply(other)))
				want++
				refused()
				remove(other)
			}
			_, claim := claimOf(t, c, machine)
			require.Equal(t, int32(1+test.others), claim.Fence)
			require.Len(t, claim.History, min(test.others, 64))
			require.Equal(t, name, claim.History[0].Name, "a name that is tried again is not forgotten")
		})
	}
}

// An operation that was refused before it attempted anything may be corrected
// and applied again under its name: that is one call, not none.
func TestRefusedAndCorrected(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for name, test := range map[string]struct{ wrong, right, reason string }{
		"not resolved":  {host("") + ", configurationRef: {name: nope, version: 7}", `{"configurationRef":null}`, "VersionNotFound"},
		"undeliverable": {host("image: img-m, provisioningFormat: Ignition"), `{"host":{"provisioningFormat":"CloudInit"}}`, "IgnitionNotDeliverable"},
	} {
		t.Run(name, func(t *testing.T) {
			r, dir := newReconciler(t, c, asRead)
			machine, op := uniqueName(), uniqueName()
			store(t, c, "machines", object(t, "machines", machine, "spec: {"+test.wrong+"}"))
			createOperation(t, c, op, "machineRef: "+machine)
			refused := reconcileUntilFinished(t, c, r, op)
			require.Equal(t, test.reason, reason(refused), message(refused))
			_, claim := claimOf(t, c, machine)
			require.Equal(t, resolve.Claim{}, claim)
			require.NoError(t, c.of("machineoperations").Delete(t.Context(), op, metav1.DeleteOptions{}))
			require.NoError(t, patchSpec(t, c, machine, test.right))
			createOperation(t, c, op, "machineRef: "+machine)
			again := reconcileUntilFinished(t, c, r, op)
			require.Equal(t, "Complete", phase(again), message(again))
			require.Equal(t, 1, actsOn(t, dir, machine))
		})
	}
	t.Run("behind another", func(t *testing.T) { // on the second of its hosts: the first is given back
		r, dir := newReconciler(t, c, asRead)
		rack := addRack(t, c, "-a", "-b")
		holder, op := uniqueName(), uniqueName()
		createOperation(t, c, holder, "machineRef: "+rack+"-b")
		_, err := r.Reconcile(t.Context(), requestFor(holder))
		require.NoError(t, err)
		selected := "machineSelector: {matchLabels: {rack: " + rack + "}}"
		createOperation(t, c, op, selected)
		refused := reconcileUntilFinished(t, c, r, op)
		require.Equal(t, "OtherOperation", reason(refused), message(refused))
		require.Contains(t, message(refused), `MachineOperation "`+holder+`" is replacing the host of Machine "`+rack+`-b"`)
		_, claim := claimOf(t, c, rack+"-a")
		require.Equal(t, resolve.Claim{Fence: 1}, claim, "given back, with its fence and no history")
		require.Equal(t, "Complete", phase(reconcileUntilFinished(t, c, r, holder)))

		require.NoError(t, c.of("machineoperations").Delete(t.Context(), op, metav1.DeleteOptions{}))
		createOperation(t, c, op, selected)
		again := reconcileUntilFinished(t, c, r, op)
		require.Equal(t, "Complete", phase(again), message(again))
		require.Equal(t, []int{1, 2}, []int{actsOn(t, dir, rack+"-a"), actsOn(t, dir, rack+"-b")})
		_, claim = claimOf(t, c, rack+"-b")
		require.Equal(t, resolve.Claim{Holder: resolve.Holder{Name: op, UID: again.GetUID()}, Fence: 2, History: claim.History}, claim)
		require.Equal(t, holder, claim.History[0].Name)
	})
}

// addRack stores Machines with a label that selects them all, and returns its
// value, which their names begin with.
func addRack(t *testing.T, c client, suffixes ...string) string {
	t.Helper()
	rack := uniqueName()
	for _, suffix := range suffixes {
		u := object(t, "machines", rack+suffix, "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}")
		u.SetLabels(map[string]string{"rack": rack})
		store(t, c, "machines", u)
	}
	return rack
}

func requestFor(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// Where a claim was removed by hand, the provider knows a higher fence than the
// next one: the claim is raised above it, and the host is replaced once.
func TestClaimIsRemoved(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	r, dir := newReconciler(t, c, asRead)
	machine := newMachine(t, c)
	for range 3 {
		require.Equal(t, "Complete", phase(reconcileUntilFinished(t, c, r, newOperation(t, c, machine))))
	}
	lease, claim := claimOf(t, c, machine)
	require.Equal(t, int32(3), claim.Fence)
	require.NoError(t, claims(t, c).Delete(t.Context(), lease, metav1.DeleteOptions{}))
	last := newOperation(t, c, machine)
	op := reconcileUntilFinished(t, c, r, last)
	require.Equal(t, "Complete", phase(op), message(op))
	require.Equal(t, 4, actsOn(t, dir, machine))
	_, claim = claimOf(t, c, machine)
	require.Equal(t, resolve.Claim{Holder: resolve.Holder{Name: last, UID: op.GetUID()}, Fence: 4}, claim)
	require.EqualValues(t, 2, targetOf(t, op, 0)["attempts"], "the first was refused for its fence")
}

// A claim that another operation has got meanwhile is lost: no call. What was
// accepted before is followed to its end.
func TestClaimIsLost(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	taken := `{"spec":{"holderIdentity":"somebody/else","leaseTransitions":9}}`
	for name, test := range map[string]struct {
		accepted            bool
		patch, reason, says string
	}{
		"before the call":         {false, taken, "ClaimLost", `MachineOperation "somebody" has claimed the host meanwhile (Lease LEASE)`},
		"cleared before the call": {false, `{"spec":{"holderIdentity":null}}`, "ClaimLost", "the claim of the operation on the host was removed (Lease LEASE)"},
		"after it was accepted":   {true, taken, "Replaced", "the host was replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			r, dir := newReconciler(t, c, asRead)
			machine := newMachine(t, c)
			op := newOperation(t, c, machine)
			for range 2 { // freeze, mark
				_, err := r.Reconcile(t.Context(), requestFor(op))
				require.NoError(t, err)
			}
			if test.accepted {
				reconcileUntil(t, r, op, func() bool {
					return targetOf(t, get(t, c, "machineoperations", op), 0)["providerOperation"] != nil
				})
			}
			lease, _ := claimOf(t, c, machine)
			_, err := claims(t, c).Patch(t.Context(), lease, types.MergePatchType, []byte(test.patch), metav1.PatchOptions{})
			require.NoError(t, err)
			done := reconcileUntilFinished(t, c, r, op)
			require.Equal(t, test.reason, reason(done), message(done))
			require.Contains(t, message(done), strings.ReplaceAll(test.says, "LEASE", lease))
			if test.accepted {
				require.Equal(t, 1, actsOn(t, dir, machine))
				return
			}
			require.Zero(t, actsOn(t, dir, machine))
			require.NotContains(t, targetOf(t, done, 0), "attempts", "an attempt that was not made is not counted")
			_, claim := claimOf(t, c, machine)
			require.NotEqual(t, op, claim.Holder.Name)
			require.Equal(t, test.patch == taken, claim.Holder.Name == "somebody", "what is not ours is not given back")
		})
	}
}

// A claim is free when its holder is gone, was created again, is being deleted or
// has finished; a crash between claim and freeze blocks nobody for longer.
func TestClaimIsFree(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for name, end := range map[string]func(t *testing.T, holder string){
		"gone": func(t *testing.T, holder string) {
			require.NoError(t, c.of("machineoperations").Delete(t.Context(), holder, metav1.DeleteOptions{}))
		},
		"created again": func(t *testing.T, holder string) {
			require.NoError(t, c.of("machineoperations").Delete(t.Context(), holder, metav1.DeleteOptions{}))
			createOperation(t, c, holder, "machineRef: other")
		},
		"being deleted": func(t *testing.T, holder string) {
			_, err := c.of("machineoperations").Patch(t.Context(), holder, types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/keep"]}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			require.NoError(t, c.of("machineoperations").Delete(t.Context(), holder, metav1.DeleteOptions{}))
		},
		"ended by hand": func(t *testing.T, holder string) {
			_, err := c.of("machineoperations").Patch(t.Context(), holder, types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status")
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, dir := newReconciler(t, c, asRead)
			machine := newMachine(t, c)
			holder := newOperation(t, c, machine)
			// It crashes between claim and freeze.
			frozen := r.Writer
			r.Writer = failingStatus{r.Writer}
			_, err := r.Reconcile(t.Context(), requestFor(holder))
			require.ErrorContains(t, err, "crash")
			r.Writer = frozen
			_, claim := claimOf(t, c, machine)
			require.Equal(t, holder, claim.Holder.Name)

			blocked := reconcileUntilFinished(t, c, r, newOperation(t, c, machine))
			require.Equal(t, "OtherOperation", reason(blocked), message(blocked))
			end(t, holder)
			done := reconcileUntilFinished(t, c, r, newOperation(t, c, machine))
			require.Equal(t, "Complete", phase(done), message(done))
			require.Equal(t, 1, actsOn(t, dir, machine))
			_, claim = claimOf(t, c, machine)
			require.Equal(t, []string{holder}, []string{claim.History[0].Name}, "its name counts as used, since nobody knows what it did")
		})
	}
}

// failingStatus crashes before each write of a status that is not a dry run.
type failingStatus struct{ ctrlclient.Client }

func (f failingStatus) Status() ctrlclient.SubResourceWriter {
	return failingWriter{f.Client.Status()}
}

type failingWriter struct{ ctrlclient.SubResourceWriter }

func (f failingWriter) Patch(ctx context.Context, o ctrlclient.Object, p ctrlclient.Patch, opts ...ctrlclient.SubResourcePatchOption) error {
	options := ctrlclient.SubResourcePatchOptions{}
	options.ApplyOptions(opts)
	if len(options.DryRun) > 0 {
		return f.SubResourceWriter.Patch(ctx, o, p, opts...)
	}
	return fmt.Errorf("a crash before the write of %s", o.GetName())
}

// One process whose cache has a copy of an operation without its targets, whose
// Machine has other labels by now: the host is replaced for one operation only.
func TestRelabelledMeanwhile(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	r, dir := newReconciler(t, c, asRead)
	rack := addRack(t, c, "-a")
	first, second := uniqueName(), uniqueName()
	stale := createOperation(t, c, first, "machineSelector: {matchLabels: {rack: "+rack+"}}")
	_, err := r.Reconcile(t.Context(), requestFor(first))
	require.NoError(t, err)
	_, err = c.of("machines").Patch(t.Context(), rack+"-a", types.MergePatchType, []byte(`{"metadata":{"labels":{"rack":"`+rack+`-new"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	r.Cache = reader{Reader: r.Live, get: func(_ context.Context, key ctrlclient.ObjectKey, o ctrlclient.Object) (bool, error) {
		if u, ok := o.(*unstructured.Unstructured); ok && key.Name == first {
			stale.DeepCopyInto(u)
			return true, nil
		}
		return false, nil
	}}
	createOperation(t, c, second, "machineSelector: {matchLabels: {rack: "+rack+"-new}}")
	refused := reconcileUntilFinished(t, c, r, second)
	require.Equal(t, "OtherOperation", reason(refused), message(refused))
	require.Equal(t, "Complete", phase(reconcileUntilFinished(t, c, r, first)))
	require.Equal(t, 1, actsOn(t, dir, rack+"-a"))
}

// An operation over Machines of two providers, one of them not registered here,
// is not begun, and stands in nobody's way.
func TestMixedProviders(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	r, dir := newReconciler(t, c, asRead)
	rack := addRack(t, c, "-a", "-b")
	require.NoError(t, patchSpec(t, c, rack+"-b", `{"host":{"external":{"provider":"Elsewhere"}}}`))
	mixed := createOperation(t, c, uniqueName(), "machineSelector: {matchLabels: {rack: "+rack+"}}")
	for range 3 {
		_, err := r.Reconcile(t.Context(), requestFor(mixed.GetName()))
		require.NoError(t, err)
	}
	require.Equal(t, mixed, get(t, c, "machineoperations", mixed.GetName()), "it is left alone")
	done := reconcileUntilFinished(t, c, r, newOperation(t, c, rack+"-a"))
	require.Equal(t, "Complete", phase(done), message(done))
	require.Equal(t, 1, actsOn(t, dir, rack+"-a"))
}
