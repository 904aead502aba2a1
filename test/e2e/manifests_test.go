package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// The API server takes every way in, with the CRDs of cert-manager.
func TestManifestsApply(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager").Output()
	require.NoError(t, err)
	require.NoError(t, foreign.InstallCRDs(t.Context(), filepath.Join(strings.TrimSpace(string(out)), "deploy", "crds")))
	// The configurations of this cluster lead to a process, not to a Service.
	require.NoError(t, foreign.RemoveWebhook(t.Context()))
	t.Cleanup(func() { require.NoError(t, foreign.InstallWebhook(context.Background())) })
	apply := func(what ...string) {
		t.Helper()
		out, err := foreign.Kubectl(t.Context(), nil, append([]string{"apply", "--server-side", "--force-conflicts", "--dry-run=server"}, what...)...)
		require.NoError(t, err, out)
		require.NotContains(t, out, "Warning", "Pod Security among them")
		require.NotContains(t, out, "customresourcedefinition")
	}
	for _, way := range []string{"webhook-only", "standalone"} {
		apply("-k", filepath.Join(root, "manifests", way))
	}

	// What a release consists of.
	dist := t.TempDir()
	const image = "registry.example.com:5000/hostformat@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	made, err := exec.CommandContext(t.Context(), "make", "-C", root, "release", "DIST="+dist, "IMAGE="+image).CombinedOutput()
	require.NoError(t, err, string(made))
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = dist
	sums, err := check.CombinedOutput()
	require.NoError(t, err, string(sums))
	require.Equal(t, "crds/install.yaml: OK\nstandalone/install.yaml: OK\nwebhook-only/install.yaml: OK\n", string(sums))
	for way, images := range map[string]int{"crds": 0, "webhook-only": 1, "standalone": 2} {
		file := filepath.Join(dist, way, "install.yaml")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, images, strings.Count(string(text), "image: "+image+"\n"))
		require.Equal(t, way == "crds", strings.Contains(string(text), "CustomResourceDefinition"))
		require.NotContains(t, string(text), "{{", "a chart may hold it")
		if images > 0 {
			apply("-f", file)
		}
	}
}

// Each overlay that the pages show, beside a checkout, does what they say.
func TestOverlays(t *testing.T) {
	ours := ourCRDs.take(t)
	const entry = "machines.validate.hostformat.unbounded-cloud.io"
	rendered := func(page, heading string) string {
		t.Helper()
		dir := t.TempDir()
		for file, text := range map[string]string{
			"kustomization.yaml": documented(t, page, heading, "yaml", 0),
			"ca.crt":             "-----BEGIN CERTIFICATE-----\n",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		}
		require.NoError(t, os.Symlink(root, filepath.Join(dir, "hostformat")))
		out, err := ours.Kubectl(t.Context(), nil, "kustomize", "--load-restrictor=LoadRestrictionsNone", dir)
		require.NoError(t, err, out)
		require.Contains(t, out, entry)
		return out
	}
	image := rendered("docs/operations.md", "## Install")
	require.Contains(t, image, "image: registry.example.com/hostformat:v1.2.3\n")
	require.Equal(t, 9, strings.Count(image, "matchConditions:"))
	given := rendered("docs/operations.md", "## Certificates")
	require.Equal(t, 9, strings.Count(given, "caBundle: LS0tLS1CRUdJTi"), "every webhook trusts it")
	require.NotContains(t, given, "cert-manager")
	require.NotContains(t, rendered("docs/reference.md", "## Which requests reach the webhook"), "matchConditions")
	versions := rendered("docs/reference.md", "## Versions")
	require.Contains(t, versions, "- --controllers=*,machineconfiguration\n")
	require.Contains(t, versions, "name: hostformat-controller-versions\n")
}

// startPermitted starts controllers that may do what these folders of manifests
// let them do, and nothing else. That is taken back when the test ends, so that no
// other test passes by it.
func startPermitted(t *testing.T, c client, names string, folders ...string) *controllers {
	t.Helper()
	for _, folder := range folders {
		file := filepath.Join(root, "manifests", folder, "rbac.yaml")
		out, err := c.cluster.Kubectl(t.Context(), nil, "apply", "-f", file)
		require.NoError(t, err, out)
		t.Cleanup(func() {
			out, err := c.cluster.Kubectl(context.Background(), nil, "delete", "-f", file)
			require.NoError(t, err, out)
		})
	}
	kubeconfig, err := c.cluster.KubeconfigFor(t.TempDir(), "system:serviceaccount:hostformat-system:hostformat-controller")
	require.NoError(t, err)
	t.Cleanup(func() { // who is killed does not give it back, and the next one would wait for it to end
		out, err := c.cluster.Kubectl(context.Background(), nil, "delete", "lease", "-n", "hostformat-system", "hostformat-controllers", "--ignore-not-found")
		require.NoError(t, err, out)
	})
	return startControllers(t, c.cluster, kubeconfig, names, "--leader-elect", "--leader-election-namespace=hostformat-system")
}

// The permissions that manifests/versions adds are enough to cut a version, to
// have it follow the template, and to mark it as deployed.
func TestVersionPermissions(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	running := startPermitted(t, c, "*,machineconfiguration", "standalone", "simulated", "versions")
	configuration := uniqueName()
	store(t, c, "machineconfigurations", object(t, "machineconfigurations", configuration, "spec: {template: {host: {image: img-a, provisioningFormat: CloudInit}}}"))
	imageOf := func() string {
		version, err := c.of("machineconfigurationversions").Get(t.Context(), configuration+"-v1", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		image, _, _ := unstructured.NestedString(version.Object, "spec", "template", "host", "image")
		return image
	}
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.Equal(collect, "img-a", imageOf()) }, patience, interval)
	_, err := c.of("machineconfigurations").Patch(t.Context(), configuration, types.MergePatchType, []byte(`{"spec":{"template":{"host":{"image":"img-b"}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.Equal(collect, "img-b", imageOf()) }, patience, interval)

	machine, name := uniqueName(), uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {configurationRef: {name: "+configuration+"}, host: {external: {provider: Simulated, providerID: a}}}"))
	store(t, c, "machineoperations", object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineRef: "+machine+"}"))
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		version, err := c.of("machineconfigurationversions").Get(t.Context(), configuration+"-v1", metav1.GetOptions{})
		if assert.NoError(collect, err) {
			deployed, _, _ := unstructured.NestedBool(version.Object, "status", "deployed")
			assert.True(collect, deployed)
		}
	}, patience, interval)
	require.NotContains(t, running.log.String(), "forbidden")
}

// The permissions of the controller that ships are enough for all it does.
func TestControllerPermissions(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	running := startPermitted(t, c, "*", "standalone", "simulated")
	machine := newMachine(t, c)
	name := uniqueName()
	_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineRef: "+machine+", ttlSecondsAfterFinished: 1}"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, err := c.of("machineoperations").Get(t.Context(), name, metav1.GetOptions{})
		assert.Error(collect, err, "done, and expired")
		out, err := ours.Kubectl(t.Context(), nil, "get", "events", "-n", "default", "--field-selector=involvedObject.name="+name)
		assert.NoError(collect, err)
		assert.Contains(collect, out, "HostReplaceComplete")
	}, patience, interval)
	// The next operation takes the claim over, and one that fails gives it back.
	done := finished(t, c, newOperation(t, c, machine))
	require.Equal(t, "Complete", phase(done), message(done))
	require.NoError(t, patchSpec(t, c, machine, `{"host":{"provisioningFormat":"Ignition"}}`))
	require.Equal(t, "Failed", phase(finished(t, c, newOperation(t, c, machine))))
	require.NotContains(t, running.log.String(), "forbidden")
}
