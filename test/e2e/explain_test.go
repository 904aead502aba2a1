package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimed is what explain says of the claim on the host of a Machine.
type claimed struct {
	Provider, ProviderID, Reason string
	Claim                        *struct {
		Lease, Holder string
		Fence         int
	}
}

func explainClaim(t asserting, run func(args ...string) (string, string, int), machine string) claimed {
	t.Helper()
	stdout, stderr, _ := run("explain", "machine/"+machine, "-o", "json")
	var e claimed
	require.NoError(t, json.Unmarshal([]byte(stdout), &e), stderr)
	return e
}

// explain tells who holds the claim on a host while it is replaced and afterwards,
// and that a name replaces a host once.
func TestExplainClaim(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	run := func(args ...string) (string, string, int) { return plugin(t, ours, args...) }
	machine, bay := uniqueName(), uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {"+hostAt("image: img-a, provisioningFormat: CloudInit", bay)+"}"))
	process := startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=duration=10s")

	before := explainClaim(t, run, machine)
	require.Equal(t, [2]string{"Simulated", bay}, [2]string{before.Provider, before.ProviderID})
	require.NotNil(t, before.Claim)
	require.Empty(t, before.Claim.Holder)
	require.Zero(t, before.Claim.Fence)

	first := newOperation(t, c, machine)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Equal(collect, "InProgress", phase(get(collect, c, "machineoperations", first)))
	}, patience, interval)
	during := explainClaim(t, run, machine)
	require.Equal(t, first, during.Claim.Holder)
	require.Equal(t, 1, during.Claim.Fence)
	require.Equal(t, before.Claim.Lease, during.Claim.Lease)
	require.Equal(t, "OtherOperation", during.Reason)
	stdout, _, code := run("explain", "mop/"+first)
	require.Zero(t, code, stdout)
	require.Contains(t, flat(stdout), "claim held by this operation (Lease "+during.Claim.Lease+")")
	stdout, _, code = run("explain", "machine/"+machine)
	require.Equal(t, 1, code)
	require.Contains(t, flat(stdout), "claim held by MachineOperation "+first+" (Lease "+during.Claim.Lease+")")

	// What explain refuses a second one for is what the controller refuses it for.
	second := newOperation(t, c, machine)
	refused := finished(t, c, second)
	require.Equal(t, "OtherOperation", reason(refused))
	require.Contains(t, flat(stdout), message(refused))

	require.Equal(t, "Complete", phase(finished(t, c, first)))
	after := explainClaim(t, run, machine)
	require.Empty(t, after.Claim.Holder)
	require.Empty(t, after.Reason)
	require.Equal(t, 1, after.Claim.Fence)
	process.kill()

	require.NoError(t, c.of("machineoperations").Delete(t.Context(), first, metav1.DeleteOptions{}))
	_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", first, "spec: {operationKind: HostReplace, machineRef: "+machine+"}"), metav1.CreateOptions{})
	require.NoError(t, err)
	requireForetold(t, c, run, first, "NameUsed")
}

// Two Machines that name one host are refused, by explain as by the controller.
func TestExplainSharedHost(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	run := func(args ...string) (string, string, int) { return plugin(t, ours, args...) }
	bay := uniqueName()
	machines := []string{uniqueName(), uniqueName()}
	for _, machine := range machines {
		store(t, c, "machines", object(t, "machines", machine, "spec: {"+hostAt("image: img-a, provisioningFormat: CloudInit", bay)+"}"))
	}
	for _, machine := range machines {
		require.Equal(t, "HostShared", explainClaim(t, run, machine).Reason)
	}
	requireForetold(t, c, run, newOperation(t, c, machines[0]), "HostShared")
}

// requireForetold requires that explain refuses an operation for the reason and
// in the words of the controller, which is started for it.
func requireForetold(t *testing.T, c client, run func(args ...string) (string, string, int), operation, wanted string) {
	t.Helper()
	stdout, stderr, code := run("explain", "mop/"+operation, "-o", "json")
	require.Equal(t, 1, code, stderr)
	var e struct{ Refused, Reason string }
	require.NoError(t, json.Unmarshal([]byte(stdout), &e))
	startControllers(t, c.cluster, c.cluster.Kubeconfig, "hostreplace")
	op := finished(t, c, operation)
	require.Equal(t, [2]string{wanted, wanted}, [2]string{e.Reason, reason(op)})
	require.Equal(t, message(op), e.Refused)
}

// Who may not read Leases is told what explain does not know; who may, and may
// read no namespace, is told all.
func TestExplainWithoutPermission(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	machine := uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {"+host("image: img-a, provisioningFormat: CloudInit")+"}"))
	user := uniqueName()
	grant := func(name, rules string, namespaced bool) {
		kind, namespace := "ClusterRole", ""
		if namespaced {
			kind, namespace = "Role", ", namespace: hostformat-system"
		}
		manifest := strings.Join([]string{
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: " + kind + ", metadata: {name: " + name + namespace + "}, rules: [" + rules + "]}",
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: " + kind + "Binding, metadata: {name: " + name + namespace + "}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: " + kind + ", name: " + name + "}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: " + user + "}]}",
		}, "\n---\n")
		out, err := ours.Kubectl(t.Context(), []byte(manifest), "apply", "-f", "-")
		require.NoError(t, err, out)
		t.Cleanup(func() {
			out, err := ours.Kubectl(context.Background(), nil, "delete", kind+","+kind+"Binding", name, "-n", "hostformat-system")
			require.NoError(t, err, out)
		})
	}
	run := func(args ...string) (string, string, int) { return plugin(t, ours, append(args, "--as="+user)...) }

	grant(user, "{apiGroups: [unbounded-cloud.io], resources: [machines, machineconfigurations, machineconfigurationversions, machineoperations], verbs: [get, list]}", false)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		stdout, stderr, code := run("explain", "machine/"+machine)
		assert.Zero(collect, code, stderr)
		assert.Contains(collect, flat(stdout), "claim not known refused no")
		assert.Equal(collect, "warning: it is not known which operations hold the claims on hosts, and whether one of them is in the way: Leases in namespace hostformat-system may not be read (needs get and list on leases of coordination.k8s.io)\n", stderr)
	}, patience, interval)
	require.Nil(t, explainClaim(t, run, machine).Claim)

	grant(user, "{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list]}", true)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		stdout, stderr, code := run("explain", "machine/"+machine)
		assert.Zero(collect, code)
		assert.Empty(collect, stderr)
		assert.Contains(collect, flat(stdout), "claim free refused no")
	}, patience, interval)
	stdout, stderr, code := plugin(t, ours, "explain", "machine/"+machine, "--claim-namespace=nowhere")
	require.Zero(t, code)
	require.Contains(t, flat(stdout), "claim not known")
	require.Contains(t, stderr, "there is no namespace nowhere")
}

// flat is a text however it was wrapped.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }
