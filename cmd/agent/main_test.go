package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandLine(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	config := file("config", "MachineName: worker-1")
	broken := file("broken", "MachineName: worker-1\nProvisioningFormat: butane")
	for name, test := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"help":          {[]string{"--help"}, 0, "agent report --config FILE [flags]", ""},
		"unknown flag":  {[]string{"--foo"}, 2, "", "agent: unknown flag: --foo; see agent --help\n"},
		"no command":    {nil, 2, "", "agent: the only command is report; see agent --help\n"},
		"other command": {[]string{"x"}, 2, "", "agent: the only command is report; see agent --help\n"},
		"no config":     {[]string{"report"}, 2, "", "agent: --config must name the installation config\n"},
		"missing":       {[]string{"report", "--config", filepath.Join(dir, "missing")}, 2, "", "agent: cannot use the installation config: open " + dir + "/missing: no such file or directory\n"},
		"wrong config":  {[]string{"report", "--config", broken}, 2, "", `ProvisioningFormat "butane" is not supported: use cloud-init or ignition`},
		"no kubeconfig": {[]string{"report", "--config", config, "--kubeconfig", filepath.Join(dir, "missing")}, 1, "", "agent: cannot configure access to the API server: "},
		"no API server": {[]string{"report", "--config", config}, 1, "", "; set --kubeconfig\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.code, run(t.Context(), test.args, &stdout, &stderr))
			require.Contains(t, stdout.String(), test.stdout)
			require.Contains(t, stderr.String(), test.stderr)
			if test.code != 0 {
				require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line")
			}
		})
	}
}
