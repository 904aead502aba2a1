package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/test/local"
)

// documented returns the n-th block in a language, sh for commands, below a
// heading of a page.
func documented(t *testing.T, page, heading, language string, n int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	require.True(t, found, "%s has a section %q", page, heading)
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```"+language+"\n")
	require.Greater(t, len(blocks), n+1, "%s shows %s", heading, language)
	block, _, _ := strings.Cut(blocks[n+1], "```")
	return block
}

// run has a shell do what a page shows, from the top of the checkout, and
// returns what it prints.
func (i installation) run(t *testing.T, commands string) string {
	t.Helper()
	out, err := shell(t, i.client.cluster, root, commands)
	require.NoError(t, err, "%s\n%s", commands, out)
	return out
}

// withEachKubectl runs a test of documented commands with the newest kubectl and with
// the oldest one that the documentation promises. path is PATH with that kubectl.
func withEachKubectl(t *testing.T, test func(t *testing.T, path string)) {
	t.Helper()
	rest := os.Getenv("KUBEBUILDER_ASSETS") + string(os.PathListSeparator) + os.Getenv("PATH")
	t.Run("kubectl", func(t *testing.T) { test(t, "PATH="+rest) })
	t.Run("old kubectl", func(t *testing.T) {
		old := local.OldKubectl()
		if old == "" {
			t.Skip("the oldest kubectl that the documentation promises is not at hand: make test builds it, unless KUBEBUILDER_ASSETS is set")
		}
		test(t, "PATH="+old+string(os.PathListSeparator)+rest)
	})
}

// shell runs commands in a folder, for a cluster, with the same kubectl as the
// rest of the tests, and returns their output.
func shell(t *testing.T, cluster *local.Cluster, dir, commands string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig)
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		cmd.Env = append(cmd.Env, "PATH="+assets+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Ten times: undone as README.md says, then installed as it says, with the
// first bad object refused at once. Nothing that is stored is touched.
func TestInstall(t *testing.T) {
	i := newInstallation(t)
	last := i.overlay(t)
	ways := []string{root + "/manifests/webhook-only", root + "/manifests/standalone"}
	if os.Getenv("E2E_OVERLAY") != "" {
		ways = []string{last, last}
	}
	shown := "manifests/webhook-only"
	install, refuse, undo := documented(t, "README.md", "## Install it", "sh", 0), documented(t, "README.md", "## Install it", "sh", 1), documented(t, "README.md", "## Undo it", "sh", 0)
	require.Contains(t, install, shown)
	require.Contains(t, undo, shown)
	for n := range 100 {
		_, err := i.client.of("machines").Create(t.Context(), object(t, "machines", fmt.Sprintf("undo-%03d", n), "spec: {host: {image: img-a, provisioningFormat: Ignition}}"), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	before, err := i.client.of("machines").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	installed := last
	for n := range 10 {
		out := i.run(t, strings.ReplaceAll(undo, shown, installed))
		require.NotContains(t, out, "customresourcedefinition")
		left, err := i.client.cluster.Kubectl(t.Context(), nil, "get", "mutatingwebhookconfiguration,validatingwebhookconfiguration,clusterrole,clusterrolebinding,namespace", "-o", "name")
		require.NoError(t, err, left)
		require.NotContains(t, left, "hostformat")
		_, err = i.client.of("machines").Create(t.Context(), object(t, "machines", "undone", `spec: {host: {image: " img-a "}}`), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err, "nothing is locked")
		after, err := i.client.of("machines").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Equal(t, before.Items, after.Items)

		installed = ways[n%len(ways)]
		if n == 9 {
			installed = last
		}
		i.run(t, strings.ReplaceAll(install, shown, installed))
		out, err = shell(t, i.client.cluster, root, refuse)
		require.Error(t, err, "install %d: a bad object is refused at once", n)
		require.Contains(t, out, "spec.machineSelector: Required value: must select by at least one label")
	}
}

// Applying again changes nothing and keeps the CA, in either way of applying;
// an entry that is removed is removed whole, or not at all.
func TestAppliedAgain(t *testing.T) {
	i := newInstallation(t)
	dir := i.overlay(t)
	apply := func(args ...string) (string, error) {
		return i.client.cluster.Kubectl(t.Context(), nil, append([]string{"apply", "-k"}, args...)...)
	}
	ca := i.caBundle(t)
	require.NotEmpty(t, ca)
	content := func() []unstructured.Unstructured { // all but who applied it, and what it reports
		t.Helper()
		cmd := i.client.cluster.Command(t.Context(), "get", "-k", dir, "-o", "json")
		out, err := cmd.Output()
		require.NoError(t, err)
		var list unstructured.UnstructuredList
		require.NoError(t, list.UnmarshalJSON(out))
		for _, item := range list.Items {
			delete(item.Object, "status")
			for _, field := range []string{"generation", "resourceVersion", "managedFields", "annotations"} {
				unstructured.RemoveNestedField(item.Object, "metadata", field)
			}
		}
		require.NotEmpty(t, list.Items)
		return list.Items
	}
	before := content()
	for _, dir := range []string{dir, root + "/manifests/crds"} {
		out, err := apply(dir)
		require.NoError(t, err, out)
		for line := range strings.Lines(out) {
			// kubectl replaces the selector of a disruption budget each time,
			// with what it is.
			require.True(t, strings.HasSuffix(strings.TrimSpace(line), " unchanged") || strings.HasPrefix(line, "poddisruptionbudget"), line)
		}
		out, err = apply(dir, "--dry-run=server")
		require.NoError(t, err, out)
		require.NotContains(t, out, "Warning")
	}
	out, err := apply(dir, "--server-side")
	require.NoError(t, err, out)
	require.Equal(t, ca, i.caBundle(t))
	require.Equal(t, before, content())
	out, err = apply(dir, "--server-side")
	require.NoError(t, err, out)
	require.Equal(t, before, content())
	require.Equal(t, ca, i.caBundle(t))

	shorter := t.TempDir()
	relative, err := filepath.Rel(shorter, dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(shorter, "kustomization.yaml"), []byte("resources: ["+relative+"]\n"+`patches:
  - target: {kind: ValidatingWebhookConfiguration}
    patch: |
      - {op: remove, path: /webhooks/0}
`), 0o600))
	names := func() []string {
		t.Helper()
		configuration, err := i.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "hostformat", metav1.GetOptions{})
		require.NoError(t, err)
		var names []string
		for _, webhook := range configuration.Webhooks {
			names = append(names, webhook.Name)
		}
		return names
	}
	all := names()
	// The API server keeps what the injector owns, and then refuses the rest.
	out, err = apply(shorter, "--server-side")
	require.Error(t, err)
	require.Contains(t, out, "clientConfig: Required value: exactly one of url or service is required")
	require.Equal(t, all, names())
	out, err = apply(shorter)
	require.NoError(t, err, out)
	require.Equal(t, all[1:], names())
	out, err = apply(dir)
	require.NoError(t, err, out)
	require.ElementsMatch(t, all, names())
	wrong := object(t, "machines", uniqueName(), `spec: {host: {image: "a\u200bb"}}`)
	require.EventuallyWithT(t, func(collect *assert.CollectT) { // the entry that is new gets its CA
		assert.NoError(collect, i.write(t.Context()))
		_, err := i.client.of("machines").Create(t.Context(), wrong, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		assert.True(collect, apierrors.IsInvalid(err), "%v", err)
	}, patience, interval)
}

// Pods that start without the serving Secret live, say why they are not ready,
// and turn ready by themselves; the write that follows at once is answered.
func TestMissingCertificate(t *testing.T) {
	i := newInstallation(t)
	needsCertManager(t, i)
	i.scaled(t, certManager, "cert-manager", 0)
	i.goneFrom(t, certManager, "app=cert-manager", 0) // until then it would make another Secret
	require.NoError(t, i.CoreV1().Secrets(certs.Namespace).Delete(t.Context(), certs.Secret, metav1.DeleteOptions{}))
	i.scale(t, certs.Namespace, webhookDeployment, 0)
	i.gone(t, webhookDeployment, 0)
	t.Cleanup(func() { i.scale(t, certs.Namespace, webhookDeployment, 2) })
	i.scale(t, certs.Namespace, webhookDeployment, 2)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		pods := i.pods(collect, webhookDeployment)
		assert.Len(collect, pods, 2)
		for _, pod := range pods {
			_, err := i.probe(t, pod.Name, 8081, "/healthz")
			assert.NoError(collect, err)
			answer, err := i.probe(t, pod.Name, 8081, "/readyz")
			assert.Error(collect, err)
			assert.Contains(collect, answer+fmt.Sprint(err), "no certificate: open /etc/hostformat/tls/tls.crt: no such file or directory")
		}
	}, podPatience, interval)
	i.scale(t, certManager, "cert-manager", 1)
	i.run(t, documented(t, "README.md", "## Install it", "sh", 0))
	require.NoError(t, i.write(t.Context()), "in the same second")
	for _, pod := range i.pods(t, webhookDeployment) {
		require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
	}
}

const certManager = "cert-manager" // its namespace

func needsCertManager(t *testing.T, i installation) {
	t.Helper()
	for _, name := range []string{"cert-manager", "cert-manager-cainjector"} {
		if _, err := i.AppsV1().Deployments(certManager).Get(context.Background(), name, metav1.GetOptions{}); err != nil {
			t.Skipf("needs cert-manager in namespace %s: %v", certManager, err)
		}
	}
}
