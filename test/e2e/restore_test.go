package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// docs/restore.md brings a whole fleet back: every Machine resolves to what it resolved
// to before, no version is created, no operation runs again, and no number and no name
// is used twice.
func TestRestore(t *testing.T) {
	needsLocal(t)
	takesLong(t)
	t.Parallel() // or each part would hold up the tests that follow
	withEachKubectl(t, restore)
}

func restore(t *testing.T, path string) {
	cluster, c := emptyCluster(t)
	for _, manifest := range []string{"manifests/standalone/controller.yaml", "manifests/agent/rbac.yaml"} {
		out, err := cluster.Kubectl(t.Context(), nil, "apply", "-f", filepath.Join(cluster.Root, manifest))
		require.NoError(t, err, out)
		t.Cleanup(func() {
			_, _ = cluster.Kubectl(context.Background(), nil, "delete", "--ignore-not-found", "-f", filepath.Join(cluster.Root, manifest))
		})
	}
	start := func() *controllers {
		return startControllers(t, cluster, cluster.Kubeconfig, "*,machineconfiguration")
	}
	running := start()
	edit := func(template string) {
		t.Helper()
		_, err := c.of("machineconfigurations").Patch(t.Context(), "rack3", types.MergePatchType, []byte(`{"spec":{"template":{"host":`+template+`}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	versions := func(t asserting) (names []string) {
		list, err := c.of("machineconfigurationversions").List(context.Background(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, version := range list.Items {
			names = append(names, version.GetName())
		}
		slices.Sort(names)
		return names
	}
	becomes := func(want ...string) {
		t.Helper()
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			assert.Equal(collect, want, versions(collect))
			assert.Empty(collect, blockedBy(get(collect, c, "machineconfigurations", "rack3")))
		}, patience, interval)
	}
	external := func(bay string) string { return "external: {provider: Simulated, providerID: " + bay + "}" }

	store(t, c, "machineconfigurations", object(t, "machineconfigurations", "rack3", "spec: {template: {host: {image: ubuntu-24.04-r6, provisioningFormat: CloudInit}}}"))
	becomes("rack3-v1")
	store(t, c, "machines", object(t, "machines", "worker-1", "spec: {configurationRef: {name: rack3, version: 1}, host: {"+external("bay-1")+"}}"))
	first := createOperation(t, c, "replace-worker-1", "machineRef: worker-1")
	require.Equal(t, "Complete", phase(finished(t, c, "replace-worker-1")))
	edit(`{"image":"flatcar-4230","provisioningFormat":"Ignition"}`)
	becomes("rack3-v1", "rack3-v2")
	writeStatus(t, c, "machineconfigurationversions", object(t, "machineconfigurationversions", "rack3-v2", "status: {deployed: true}"))
	store(t, c, "machines", object(t, "machines", "worker-2", "spec: {configurationRef: {name: rack3}, host: {"+external("bay-2")+"}}\n"+ignition))
	store(t, c, "machines", object(t, "machines", "worker-3", "spec: {host: {image: ubuntu-24.04-r7, provisioningFormat: CloudInit, "+external("bay-3")+"}}"))
	createOperation(t, c, "half-done", "machineRef: worker-3, parameters: {pause: 'true'}")
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, claimed := get(collect, c, "machineoperations", "half-done").GetAnnotations()["hostformat.unbounded-cloud.io/claimed"]
		assert.True(collect, claimed)
	}, patience, interval)
	running.kill()
	createOperation(t, c, "waiting", "machineRef: worker-1")

	dir := t.TempDir()
	require.NoError(t, os.Symlink(cluster.Root, filepath.Join(dir, "hostformat")))
	const stopped, started = 1, 5 // blocks of the page
	ran := runPage(t, cluster, "restore.md", dir, path, nil, func(block int) {
		switch block {
		case stopped: // and then everything is lost, but for a Machine that an agent has created
			c.deleteAll(t)
			store(t, c, "machines", object(t, "machines", "worker-2", "{}"))
		case started:
			running = start()
		}
	})
	require.Equal(t, 7, ran, "every block of commands is found")

	becomes("rack3-v1", "rack3-v2")
	for name, want := range map[string]string{"replace-worker-1": "Complete", "half-done": "Failed", "waiting": "Failed"} {
		require.Equal(t, want, phase(get(t, c, "machineoperations", name)), name)
	}
	require.NoError(t, c.of("machineoperations").Delete(t.Context(), "replace-worker-1", metav1.DeleteOptions{}))
	again := createOperation(t, c, "replace-worker-1", "machineRef: worker-1")
	require.Equal(t, "NameUsed", reason(finished(t, c, again.GetName())), "its name has replaced this host before the restore")
	next := createOperation(t, c, "replace-worker-1-again", "machineRef: worker-1")
	done := finished(t, c, next.GetName())
	require.Equal(t, "Complete", phase(done), message(done))
	require.Equal(t, "ubuntu-24.04-r6", inputOf(t, done)["hostImage"], "the true version 1")
	for _, op := range []string{"replace-worker-1", "half-done", "waiting"} {
		require.Zero(t, calls(t, cluster, get(t, c, "machineoperations", op), "worker-1").DestructiveCalls, op)
	}
	require.Equal(t, 1, calls(t, cluster, first, "worker-1").DestructiveCalls)
	edit(`{"image":"flatcar-4300","provisioningFormat":"Ignition"}`)
	becomes("rack3-v1", "rack3-v2", "rack3-v3")
}

// As Velero does without a page: configurations first, with the controller running. No
// version is created from the template of today, and the true ones are left alone until
// the status is back. The label alone does not stop a configuration whose status is there.
func TestRestoreInTheWrongOrder(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "machineconfiguration")
	name := uniqueName()
	u := object(t, "machineconfigurations", name, "spec: {template: {host: {image: img-3, provisioningFormat: Ignition}}}")
	u.SetLabels(map[string]string{v1alpha3.RestoreLabel: "nightly"})
	store(t, c, "machineconfigurations", u)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Contains(collect, blockedBy(get(collect, c, "machineconfigurations", name)),
			"StatusLost: the configuration was restored (label velero.io/restore-name: nightly) without status.latestVersion, so no version is created or changed; ")
		out, err := ours.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector=involvedObject.name="+name)
		assert.NoError(collect, err)
		assert.Contains(collect, out, "StatusLost")
	}, patience, interval)
	version := object(t, "machineconfigurationversions", name+"-v1", "spec: {version: 1, template: {host: {image: img-1, provisioningFormat: CloudInit}}}")
	version.SetLabels(map[string]string{v1alpha3.ConfigurationLabel: name})
	store(t, c, "machineconfigurationversions", version)
	was := get(t, c, "machineconfigurationversions", name+"-v1")
	other := uniqueName() // served after it: by then this one is at rest
	store(t, c, "machineconfigurations", object(t, "machineconfigurations", other, "spec: {template: {host: {image: img-3, provisioningFormat: Ignition}}}"))
	require.EventuallyWithT(t, func(collect *assert.CollectT) { get(collect, c, "machineconfigurationversions", other+"-v1") }, patience, interval)
	require.Equal(t, was, get(t, c, "machineconfigurationversions", name+"-v1"))

	writeStatus(t, c, "machineconfigurationversions", object(t, "machineconfigurationversions", name+"-v1", "status: {deployed: true}"))
	writeStatus(t, c, "machineconfigurations", object(t, "machineconfigurations", name, "status: {latestVersion: 4}"))
	_, err := c.of("machineconfigurations").Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"template":{"host":{"image":"img-5"}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(collect *assert.CollectT) { get(collect, c, "machineconfigurationversions", name+"-v5") }, patience, interval)
}
