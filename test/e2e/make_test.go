package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// make help names every target that there is to call.
func TestMakeHelp(t *testing.T) {
	needsLocal(t)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	var targets, named []string
	for line := range strings.Lines(string(makefile)) {
		if target, found := strings.CutPrefix(line, ".PHONY: "); found {
			targets = append(targets, strings.TrimSpace(target))
		}
	}
	require.Contains(t, targets, "help")
	help, err := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-C", root, "help").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(help)) {
		fields := strings.Fields(line)
		require.Equal(t, "make", fields[0])
		require.Greater(t, len(fields), 2, "%s is told", fields[1])
		named = append(named, fields[1])
	}
	require.Equal(t, targets, named)
}

// A cluster that the environment happens to name is never written to: that is
// for make e2e to say. Without what a local control plane is made of, a run that
// would take one ends at once.
func TestClusterIsGivenOnPurpose(t *testing.T) {
	needsLocal(t)
	program, err := os.Executable()
	require.NoError(t, err)
	for give, words := range map[string]string{"": "KUBEBUILDER_ASSETS is not set", "1": "the cluster that KUBECONFIG names cannot be used"} {
		cmd := exec.CommandContext(t.Context(), program, "-test.run=^$")
		cmd.Env = append(os.Environ(), "KUBEBUILDER_ASSETS=", "KUBECONFIG="+filepath.Join(t.TempDir(), "none"), giveCluster+"="+give)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), words)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	script, err := os.ReadFile(filepath.Join(root, "test", "e2e", "kind.sh"))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(makefile), giveCluster), "make e2e gives one")
	require.Equal(t, 1, strings.Count(string(script), giveCluster), "so does make e2e-kind")
}
