package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/test/local"
)

// The probe of the runbook shows whether the webhook answers: it is called in both
// directions, and nothing is stored.
func TestProbe(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	_, probe, found := strings.Cut(documented(t, "docs/runbook.md", "## HostformatWebhookDown", "sh", 0), "/readyz\n")
	require.True(t, found)
	require.Equal(t, 1, strings.Count(probe, "kubectl"))
	withEachKubectl(t, func(t *testing.T, path string) {
		out, err := shell(t, ours, root, probe, path)
		require.NoError(t, err, out)
		require.Contains(t, out, "Warning: spec.host.image")
		require.Contains(t, out, "created (server dry run)")
	})

	require.NoError(t, ours.KillWebhook())
	t.Cleanup(func() { require.NoError(t, ours.StartWebhook(context.Background())) })
	out, err := shell(t, ours, root, probe)
	require.Error(t, err)
	require.Contains(t, out, "connection refused")
}

// The commands of the runbook complete a snapshot that predates the format field, with
// and without an image. Each is for one kind of target, and works once.
func TestLegacySnapshotIsCompleted(t *testing.T) {
	all := clusters(t)
	withEachKubectl(t, func(t *testing.T, path string) { legacySnapshotIsCompleted(t, all, path) })
}

func legacySnapshotIsCompleted(t *testing.T, all map[string]*local.Cluster, path string) {
	for crds, cluster := range all {
		c := newClient(t, cluster)
		for name, test := range map[string]struct {
			input    string
			own, not int // blocks of the page
			want     map[string]any
		}{
			"with an image":     {", input: {hostImage: img-a}", 1, 2, map[string]any{"hostImage": "img-a", "provisioningFormat": "CloudInit"}},
			"without any input": {"", 2, 1, map[string]any{"provisioningFormat": "CloudInit"}},
		} {
			t.Run(crds+", "+name, func(t *testing.T) {
				operation := uniqueName()
				store(t, c, "machineoperations", object(t, "machineoperations", operation,
					"{spec: {operationKind: HostReplace, machineRef: a}, status: {phase: InProgress, targets: [{machineRef: a, phase: InProgress"+test.input+"}]}}"))
				do := func(block int, format string) (string, error) {
					command := documented(t, "docs/runbook.md", "## HostformatLegacySnapshotsLeft", "sh", block)
					return shell(t, cluster, root, strings.NewReplacer("NAME", operation, "CloudInit", format).Replace(command), path)
				}
				out, err := do(test.not, "CloudInit")
				require.Error(t, err, out)
				out, err = do(test.own, "CloudInit")
				require.NoError(t, err, out)
				for _, block := range []int{test.own, test.not} {
					out, err = do(block, "Ignition")
					require.Error(t, err, out)
				}
				require.Equal(t, test.want, inputOf(t, get(t, c, "machineoperations", operation)))
			})
		}
	}
}

// The README shows a request that is denied.
func TestReadmeExample(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	refuse := documented(t, "README.md", "## Install it", "sh", 1)
	require.Contains(t, refuse, "kubectl")
	withEachKubectl(t, func(t *testing.T, path string) {
		out, err := shell(t, ours, root, refuse, path)
		require.Error(t, err, out)
		require.Contains(t, out, "is invalid: spec.machineSelector: Required value")
	})
}

// kubectl 1.32 takes a document that begins with a brace for JSON, and rejects YAML in
// flow style.
func TestDocumentsAreBlockYAML(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	flow := regexp.MustCompile(`(?m)(<<\s*'?EOF'?|^---|^` + "```yaml" + `)[^\n]*\n\s*\{`)
	require.Regexp(t, flow, "kubectl create -f - <<EOF\n{apiVersion: v1}\nEOF")
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		require.NotRegexp(t, flow, string(text), page)
	}
}
