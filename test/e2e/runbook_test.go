package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the runbook has one look at says whether the webhook answers: the write
// travels in both directions, and is not stored.
func TestProbe(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	_, probe, found := strings.Cut(documented(t, "docs/runbook.md", "## HostformatWebhookDown", "sh", 0), "/readyz\n")
	require.True(t, found)
	require.Equal(t, 1, strings.Count(probe, "kubectl"))
	out, err := shell(t, ours, root, probe)
	require.NoError(t, err, out)
	require.Contains(t, out, "Warning: spec.host.image")
	require.Contains(t, out, "created (server dry run)")

	require.NoError(t, ours.KillWebhook())
	t.Cleanup(func() { require.NoError(t, ours.StartWebhook(context.Background())) })
	out, err = shell(t, ours, root, probe)
	require.Error(t, err)
	require.Contains(t, out, "connection refused")
}

// The runbook completes a snapshot from before the format field, with an image
// or without any; each command is for its own kind of target, and works once.
func TestLegacySnapshotIsCompleted(t *testing.T) {
	for crds, cluster := range clusters(t) {
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
					return shell(t, cluster, root, strings.NewReplacer("NAME", operation, "CloudInit", format).Replace(command))
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
