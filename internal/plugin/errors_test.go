package plugin

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Only errors of the connection have advice about the cluster.
func TestExplained(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		advice bool
	}{
		"connection": {fmt.Errorf("reading: %w", &unreachable{&url.Error{Op: "Get", URL: "https://127.0.0.1:1", Err: syscall.ECONNREFUSED}}), true},
		"disk full":  {&os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}, false},
		"no file":    {&os.PathError{Op: "open", Path: "m.yaml", Err: syscall.ENOENT}, false},
		"manifest":   {&url.Error{Op: "Get", URL: "https://127.0.0.1:1/m.yaml", Err: syscall.ECONNREFUSED}, false},
	} {
		t.Run(name, func(t *testing.T) {
			text := explained(test.err)
			require.Contains(t, text, test.err.Error())
			if test.advice {
				require.Contains(t, text, "is this the right cluster? --kubeconfig or --context names another")
			} else {
				require.Equal(t, test.err.Error(), text)
			}
		})
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

func TestOutputThatFails(t *testing.T) {
	cluster := head + "Machine\nmetadata: {name: a}\n"
	for _, args := range [][]string{{"check", "-f", "-"}, {"check", "-f", "-", "-o", "json"}, {"explain", "-f", "-", "-o", "json"}, {"explain", "-f", "-"}} {
		streams, in, _, errs := genericiooptions.NewTestIOStreams()
		in.WriteString(cluster)
		streams.Out = fullDisk{}
		require.Equal(t, exitTrouble, Run(t.Context(), args, streams), "%v", args)
		require.Contains(t, errs.String(), "no space left on device")
		require.NotContains(t, errs.String(), "cluster")
	}
}

// Errors of a command line say what to do, and come before any request.
func TestErrorsSayWhatToDo(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(config, []byte("apiVersion: v1\nkind: Config\n"), 0o600))
	for name, test := range map[string]struct{ line, says string }{
		"no context":      {"audit --kubeconfig=" + config + " --context=nope", `context "nope" does not exist; kubectl config get-contexts lists what there is, and --kubeconfig names another file`},
		"no kubeconfig":   {"explain mach/a --kubeconfig=/nope", "stat /nope: no such file or directory; kubectl config get-contexts"},
		"unknown flag":    {"explain --nope", "unknown flag: --nope; see kubectl hostformat explain --help"},
		"no value":        {"audit -o", "see kubectl hostformat audit --help"},
		"unknown command": {"inspect", `unknown command "inspect": use explain, audit or check; see kubectl hostformat --help`},
		"a word too many": {"audit mach/a", `audit reads the whole cluster and takes no "mach/a"; kubectl hostformat explain shows one object`},
		"no path":         {"check -f nope.yaml", `the path "nope.yaml" does not exist; -f takes a file, a folder with *.yaml, *.yml or *.json`},
		"nothing in it":   {"explain -f " + t.TempDir(), "-f takes a file, a folder with *.yaml, *.yml or *.json"},
		"no folder":       {"check -f - --with-crds=/nope", "no such file or directory; name a folder that holds the CRDs"},
		"no kind":         {"explain foo/a --server=https://127.0.0.1:1", `unknown kind "foo": use machine (mach), `},
		"no name":         {"explain mach --server=https://127.0.0.1:1", `"mach" is not of the form machine/NAME`},
		"the second":      {"explain mach/a mach/ --server=https://127.0.0.1:1", `"mach/" is not of the form machine/NAME`},
		"no such name":    {"explain mach/A/../b --server=https://127.0.0.1:1", `"A/../b" cannot be the name of an object: `},
		"not explained":   {"explain mc/a --server=https://127.0.0.1:1", "name a Machine that refers to it"},
		"no selector":     {"explain -l a=b=c --server=https://127.0.0.1:1", "-l: "},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := in(t, "", strings.Fields(test.line)...)
			require.Equal(t, exitTrouble, code)
			require.Empty(t, stdout)
			require.Contains(t, stderr, test.says)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		})
	}
}
