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
)

// The API server takes every way in, with the CRDs of cert-manager.
func TestManifestsApply(t *testing.T) {
	needsLocal(t)
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
		apply("-k", filepath.Join(foreign.Root, "manifests", way))
	}

	// Every write can be made to travel, as docs/reference.md shows it.
	overlay := t.TempDir()
	text := documented(t, "docs/reference.md", "## Which writes travel", "yaml", 0)
	require.NoError(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o644))
	require.NoError(t, os.Symlink(filepath.Join(foreign.Root, "manifests"), filepath.Join(overlay, "manifests")))
	for _, dir := range []string{filepath.Join(foreign.Root, "manifests", "standalone"), overlay} {
		rendered, err := foreign.Kubectl(t.Context(), nil, "kustomize", "--load-restrictor=LoadRestrictionsNone", dir)
		require.NoError(t, err, rendered)
		require.Equal(t, dir == overlay, !strings.Contains(rendered, "matchConditions"))
		require.Contains(t, rendered, "machines.validate.hostformat.unbounded-cloud.io")
	}

	// What a release consists of.
	dist := t.TempDir()
	const image = "registry.example.com:5000/hostformat@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	made, err := exec.CommandContext(t.Context(), "make", "-C", foreign.Root, "release", "DIST="+dist, "IMAGE="+image).CombinedOutput()
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

	// A given Secret in place of cert-manager, as docs/operations.md shows it.
	dir := t.TempDir()
	base, err := filepath.Rel(dir, filepath.Join(foreign.Root, "manifests"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("-----BEGIN CERTIFICATE-----\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(`
resources: [`+base+`/base]
components: [`+base+`/given-secret]
secretGenerator:
  - name: hostformat-ca
    namespace: hostformat-system
    files: [ca.crt]
    options: {disableNameSuffixHash: true}
`), 0o600))
	rendered, err := foreign.Kubectl(t.Context(), nil, "kustomize", dir)
	require.NoError(t, err, rendered)
	require.Equal(t, 9, strings.Count(rendered, "caBundle: LS0tLS1CRUdJTi"), "every webhook trusts it")
	require.NotContains(t, rendered, "cert-manager")
}

// The permissions of the controller that ships are enough for all it does.
func TestControllerPermissions(t *testing.T) {
	needsLocal(t)
	out, err := ours.Kubectl(t.Context(), nil, "apply", "-f", filepath.Join(ours.Root, "manifests", "standalone", "rbac.yaml"))
	require.NoError(t, err, out)
	kubeconfig, err := ours.KubeconfigFor(t.TempDir(), "system:serviceaccount:hostformat-system:hostformat-controller")
	require.NoError(t, err)
	c := newClient(t, ours)
	running := startControllers(t, ours, kubeconfig, "*", "--leader-elect", "--leader-election-namespace=hostformat-system")
	machine := newMachine(t, c)
	name := uniqueName()
	_, err = c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineRef: "+machine+", ttlSecondsAfterFinished: 1}"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, err := c.of("machineoperations").Get(t.Context(), name, metav1.GetOptions{})
		assert.Error(collect, err, "done, and expired")
		out, err := ours.Kubectl(t.Context(), nil, "get", "events", "-n", "default", "--field-selector=involvedObject.name="+name)
		assert.NoError(collect, err)
		assert.Contains(collect, out, "HostReplaceComplete")
	}, patience, interval)
	require.NotContains(t, running.log.String(), "forbidden")
}
