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
	makefile, err := os.ReadFile(filepath.Join(ours.Root, "Makefile"))
	require.NoError(t, err)
	var targets, named []string
	for line := range strings.Lines(string(makefile)) {
		if target, found := strings.CutPrefix(line, ".PHONY: "); found {
			targets = append(targets, strings.TrimSpace(target))
		}
	}
	require.Contains(t, targets, "help")
	help, err := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-C", ours.Root, "help").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(help)) {
		fields := strings.Fields(line)
		require.Equal(t, "make", fields[0])
		require.Greater(t, len(fields), 2, "%s is told", fields[1])
		named = append(named, fields[1])
	}
	require.Equal(t, targets, named)
}
