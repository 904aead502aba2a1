package main

import (
	"fmt"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Advice about the cluster follows errors of the connection, and no others.
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
		require.Equal(t, exitTrouble, run(t.Context(), args, streams), "%v", args)
		require.Contains(t, errs.String(), "no space left on device")
		require.NotContains(t, errs.String(), "cluster")
	}
}
