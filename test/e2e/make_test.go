package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// make help lists the targets that people use. The others are for CI.
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
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "make" {
			require.Greater(t, len(fields), 2, "%s is described", fields[1])
			named = append(named, fields[1])
		}
	}
	forCI := []string{"test-code", "test-clusters", "test-monitoring", "every-write", "reproducible", "pictures", "soak", "race", "scale", "fuzz"}
	require.ElementsMatch(t, targets, append(named, forCI...))
}

// A cluster that KUBECONFIG happens to name is never written to: only make e2e uses it.
// Without a local control plane, a run says what to do and ends at once.
func TestClusterIsGivenOnPurpose(t *testing.T) {
	needsLocal(t)
	program, err := os.Executable()
	require.NoError(t, err)
	goCache, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	for give, words := range map[string]string{"": "there is no local control plane yet: run make controlplane", "1": "the cluster that KUBECONFIG names cannot be used"} {
		cmd := exec.CommandContext(t.Context(), program, "-test.run=^$")
		cmd.Env = append(os.Environ(), "KUBEBUILDER_ASSETS=", "XDG_CACHE_HOME="+t.TempDir(), "GOCACHE="+strings.TrimSpace(string(goCache)),
			"KUBECONFIG="+filepath.Join(t.TempDir(), "none"), giveCluster+"="+give)
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
