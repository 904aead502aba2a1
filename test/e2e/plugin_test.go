package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/test/local"
)

// plugin runs the plugin as kubectl does, which replaces itself with it: with the same
// arguments and environment. The tests of documented commands run it through kubectl.
func plugin(t *testing.T, cluster *local.Cluster, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), cluster.Program("kubectl-hostformat"), args...)
	cmd.Env = cluster.Command(t.Context()).Env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errs.String(), exit.ExitCode()
	}
	require.NoError(t, err)
	return out.String(), errs.String(), 0
}

// explained is what explain says of a Machine.
type explained struct{ Kind, Name, Image, ImageSource, Format, FormatSource, Version, Refused, Reason string }

func explain(t *testing.T, cluster *local.Cluster, machine string) explained {
	t.Helper()
	stdout, stderr, code := plugin(t, cluster, "explain", "machine/"+machine, "-o", "json")
	var e explained
	require.NoError(t, json.Unmarshal([]byte(stdout), &e), stderr)
	require.Equal(t, map[bool]int{true: 0, false: 1}[e.Refused == ""], code)
	require.Equal(t, "Machine", e.Kind)
	require.Equal(t, machine, e.Name)
	return e
}

// Of an operation, explain shows what is frozen beside what is said today.
func TestExplainOperation(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	machine, operation := uniqueName(), uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {host: {image: img-b, provisioningFormat: Ignition}}"))
	store(t, c, "machineoperations", object(t, "machineoperations", operation, "{spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '"+machine+"'}}}, status: {phase: InProgress, targets: ["+
		"{machineRef: "+machine+", input: {hostImage: img-a, provisioningFormat: CloudInit}}, {machineRef: gone, input: {hostImage: img-c}}]}}"))
	stdout, stderr, code := plugin(t, ours, "explain", "mop/"+operation)
	require.Equal(t, 1, code, "the controller would fail the target whose Machine is gone: %s", stderr)
	for _, words := range []string{"MachineOperation " + operation, "phase     InProgress", "frozen    img-a, CloudInit", "image     img-b, declared in the Machine",
		"differs   format, image", "target gone", "refused   MachineNotFound: the Machine does not exist any more", "today     the Machine does not exist"} {
		require.Contains(t, stdout, words)
	}
	require.NotContains(t, stdout, "\x1b", "colours are for terminals")
	for line := range strings.Lines(stdout) {
		require.LessOrEqual(t, len([]rune(line)), 81, line)
	}
	stdout, _, _ = plugin(t, ours, "explain", "mop/"+operation, "-o", "json")
	var e struct {
		Kind, Phase string
		Targets     []struct {
			Machine, Image, Format, Refused, Reason string
			Frozen                                  bool
			Now                                     *explained
			Differs                                 []string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &e))
	require.Equal(t, "MachineOperation", e.Kind)
	require.Len(t, e.Targets, 2)
	require.Equal(t, []string{"format", "image"}, e.Targets[0].Differs)
	require.Equal(t, "img-b", e.Targets[0].Now.Image)
	require.True(t, e.Targets[0].Frozen)
	require.Empty(t, e.Targets[0].Refused)
	require.Equal(t, "MachineNotFound", e.Targets[1].Reason)
	require.False(t, e.Targets[1].Frozen)
	require.Nil(t, e.Targets[1].Now)
}

func TestExplainSelection(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	label := uniqueName()
	for n, host := range []string{"{image: img-a, provisioningFormat: CloudInit}", "{image: img-b, provisioningFormat: Ignition}"} {
		u := object(t, "machines", fmt.Sprintf("%s-%d", label, n), "spec: {host: "+host+"}")
		u.SetLabels(map[string]string{"select": label})
		store(t, c, "machines", u)
	}
	stdout, _, code := plugin(t, ours, "explain", "-l", "select="+label)
	require.Equal(t, 1, code, "one would be refused")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, []string{"NAME", "IMAGE", "FORMAT", "REFUSED"}, strings.Fields(lines[0]))
	require.Equal(t, []string{label + "-0", "img-a", "CloudInit", "-"}, strings.Fields(lines[1]))
	require.Equal(t, []string{label + "-1", "img-b", "Ignition", "IgnitionNotDeliverable"}, strings.Fields(lines[2]))
	stdout, _, _ = plugin(t, ours, "explain", "-l", "select="+label, "-o", "json")
	var list []explained
	require.NoError(t, json.Unmarshal([]byte(stdout), &list))
	require.Len(t, list, 2)
	stdout, stderr, code := plugin(t, ours, "explain", "-l", "select=nothing")
	require.Zero(t, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "No Machines found.")
}

// kubectl completes the words of the plugin through the script that
// docs/reference.md shows.
func TestPluginCompletion(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	dir := t.TempDir()
	script := documented(t, "docs/reference.md", "## `kubectl hostformat`", "sh", 0)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubectl_complete-hostformat"), []byte(script), 0o700))
	path := strings.Join([]string{dir, filepath.Dir(ours.Program("kubectl-hostformat")), os.Getenv("KUBEBUILDER_ASSETS"), os.Getenv("PATH")}, string(os.PathListSeparator))
	for typed, want := range map[string]string{"''": "audit\t", "explain --al": "--all\t", "audit -o ''": "wide\n"} {
		out, err := shell(t, ours, dir, "kubectl __complete hostformat "+typed, "PATH="+path)
		require.NoError(t, err, out)
		require.Contains(t, out, want)
	}
}

// Errors say what to do, in one line.
func TestPluginErrors(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"no machine":   {[]string{"explain", "machine/none"}, `error: machines.unbounded-cloud.io "none" not found`},
		"no server":    {[]string{"audit", "--server=https://127.0.0.1:1"}, "is this the right cluster? --kubeconfig or --context names another"},
		"no context":   {[]string{"audit", "--context=none"}, `context "none" does not exist`},
		"stranger":     {[]string{"audit", "--as=stranger"}, "this needs get and list on machines"},
		"another kind": {[]string{"explain", "pod/x"}, `unknown kind "pod": use machine (mach), machineconfiguration (mc)`},
		"no name":      {[]string{"explain", "x"}, `"x" is not of the form machine/NAME`},
		"two ways":     {[]string{"explain", "machine/x", "--all"}, "in exactly one way"},
		"output":       {[]string{"audit", "-o", "xml"}, `-o must be wide, json or yaml, got "xml"`},
		"flag":         {[]string{"audit", "--foo"}, "unknown flag: --foo"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := plugin(t, ours, test.args...)
			require.Equal(t, 2, code)
			require.Empty(t, stdout)
			require.Contains(t, stderr, test.says)
			require.Equal(t, 1, strings.Count(stderr, "error: "), stderr)
		})
	}
}
