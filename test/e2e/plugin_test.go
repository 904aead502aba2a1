package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/test/local"
)

// plugin runs kubectl hostformat, as kubectl finds it on PATH.
func plugin(t *testing.T, cluster *local.Cluster, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := cluster.Command(t.Context(), append([]string{"hostformat"}, args...)...)
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(cluster.Program("kubectl-hostformat"))+string(os.PathListSeparator)+os.Getenv("PATH"))
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
	c := newClient(t, ours)
	machine, operation := uniqueName(), uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {host: {image: img-b, provisioningFormat: Ignition}}"))
	store(t, c, "machineoperations", object(t, "machineoperations", operation, "{spec: {operationKind: HostReplace, machineRef: "+machine+"}, status: {phase: InProgress, targets: ["+
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

// Errors say what to do, in one line.
func TestPluginErrors(t *testing.T) {
	needsLocal(t)
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"no machine":   {[]string{"explain", "machine/none"}, `error: machines.unbounded-cloud.io "none" not found`},
		"no server":    {[]string{"audit", "--server=https://127.0.0.1:1"}, "is this the right cluster? --kubeconfig or --context names another"},
		"no context":   {[]string{"audit", "--context=none"}, `context "none" does not exist`},
		"stranger":     {[]string{"audit", "--as=stranger"}, "this needs get and list on machines"},
		"another kind": {[]string{"explain", "pod/x"}, `"pod" is none of machine (mach), machineconfiguration (mc)`},
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

// For 500 random clusters, audit names exactly what the webhook refuses or
// trims when the image and format of each stored object are taken away and
// written back.
func TestAuditAgreesWithTheWebhook(t *testing.T) {
	needsLocal(t)
	c := newClient(t, foreign) // whose CRDs take any format
	require.NoError(t, foreign.RemoveWebhook(t.Context()))
	t.Cleanup(func() { require.NoError(t, foreign.InstallWebhook(context.Background())) })
	random := rand.New(rand.NewPCG(20, 26))
	prefix := uniqueName() + "-audit-"
	var all []stored
	for n := range 500 {
		all = append(all, randomCluster(t, random, fmt.Sprintf("%s%d", prefix, n))...)
	}
	inParallel(t, all, func(s stored) error {
		_, err := c.of(s.resource).Create(t.Context(), s.object.DeepCopy(), metav1.CreateOptions{})
		if status, ok := s.object.Object["status"]; err == nil && ok {
			_, err = c.of(s.resource).Patch(t.Context(), s.object.GetName(), types.MergePatchType, encode(t, map[string]any{"status": status}), metav1.PatchOptions{}, "status")
		}
		return err
	})
	t.Cleanup(func() {
		inParallel(t, all, func(s stored) error {
			return c.of(s.resource).Delete(context.Background(), s.object.GetName(), metav1.DeleteOptions{})
		})
	})

	stdout, stderr, code := plugin(t, foreign, "audit", "-o", "json", "--chunk-size=97")
	require.Equal(t, 1, code, stderr)
	var findings []struct{ Finding, Rule, Kind, Name string }
	require.NoError(t, json.Unmarshal([]byte(stdout), &findings))
	audited := map[string]map[string]bool{"refuse": {}, "trim": {}, "legacy": {}}
	for _, f := range findings {
		if names, asked := audited[f.Finding]; asked && strings.HasPrefix(f.Name, prefix) {
			names[f.Kind+" "+f.Name] = true
		}
	}

	inParallel(t, all, func(s stored) error {
		_, err := c.of(s.resource).Patch(t.Context(), s.object.GetName(), types.MergePatchType, s.patch(t, nil), metav1.PatchOptions{}, s.subresource()...)
		if err == nil && s.resource == "machineconfigurationversions" { // that a deployed one may not change is no finding
			_, err = c.of(s.resource).Patch(t.Context(), s.object.GetName(), types.MergePatchType, []byte(`{"status":{"deployed":false}}`), metav1.PatchOptions{}, "status")
		}
		return err
	})
	require.NoError(t, foreign.InstallWebhook(t.Context()))
	want := map[string]map[string]bool{"refuse": {}, "trim": {}, "legacy": {}}
	var mu sync.Mutex
	inParallel(t, all, func(s stored) error {
		written, _, _ := unstructured.NestedFieldCopy(s.object.Object, s.path()...)
		after, err := c.of(s.resource).Patch(t.Context(), s.object.GetName(), types.MergePatchType, s.patch(t, written), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, s.subresource()...)
		mu.Lock()
		defer mu.Unlock()
		key := s.object.GetKind() + " " + s.object.GetName()
		if s.legacy {
			want["legacy"][key] = true
		}
		if apierrors.IsInvalid(err) {
			want["refuse"][key] = true
			delete(audited["trim"], key) // the API server shows one of both
			return nil
		}
		if err == nil {
			now, _, _ := unstructured.NestedFieldCopy(after.Object, s.path()...)
			if !assert.ObjectsAreEqual(written, now) {
				want["trim"][key] = true
			}
		}
		return err
	})
	for finding := range want {
		require.NotEmpty(t, want[finding], finding)
		require.Equal(t, slices.Sorted(maps.Keys(want[finding])), slices.Sorted(maps.Keys(audited[finding])), finding)
	}
	t.Logf("%d objects: %d refused, %d trimmed, %d legacy", len(all), len(want["refuse"]), len(want["trim"]), len(want["legacy"]))
}

// stored is an object of a random cluster.
type stored struct {
	resource string
	object   *unstructured.Unstructured
	legacy   bool // it has a snapshot from before the format field
}

// path is where the judged fields of an object stand.
func (s stored) path() []string {
	switch s.resource {
	case "machines":
		return []string{"spec", "host"}
	case "machineoperations":
		return []string{"status", "targets"}
	default:
		return []string{"spec", "template", "host"}
	}
}

func (s stored) subresource() []string {
	if s.resource == "machineoperations" {
		return []string{"status"}
	}
	return nil
}

// patch sets what stands at the path.
func (s stored) patch(t *testing.T, value any) []byte {
	path := s.path()
	for _, field := range slices.Backward(path) {
		value = map[string]any{field: value}
	}
	return encode(t, value)
}

func randomCluster(t *testing.T, random *rand.Rand, name string) []stored {
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	image := func() string {
		return pick("", "", "image: img-a, ", "image: img-a, ", "image: img-a, ", `image: " img-a ", `, `image: "\u00a0", `, `image: "img\u200b", `, "image: "+strings.Repeat("x", 2049)+", ")
	}
	format := func() string {
		return pick("", "", "provisioningFormat: CloudInit", "provisioningFormat: Ignition", "provisioningFormat: cloud-init", `provisioningFormat: ""`, "provisioningFormat: CLOUDINIT")
	}
	observed := func() string {
		return pick("", ", status: {observedProvisioningFormat: CloudInit}", ", status: {observedProvisioningFormat: Ignition}")
	}
	all := []stored{
		{"machineconfigurations", object(t, "machineconfigurations", name, "spec: {template: {host: {"+image()+format()+"}}}"), false},
		{"machineconfigurationversions", object(t, "machineconfigurationversions", name+"-v1", "{spec: {version: 1, template: {host: {"+image()+format()+"}}}, status: {deployed: "+pick("true", "false")+"}}"), false},
	}
	for n := range 2 {
		all = append(all, stored{"machines", object(t, "machines", fmt.Sprintf("%s-%d", name, n), "{spec: {host: {"+image()+format()+"}}"+observed()+"}"), false})
	}
	var targets []string
	legacy := false
	for n := range 2 {
		format, phase := format(), pick("Pending", "Complete")
		legacy = legacy || (phase == "Pending" && (format == "" || strings.HasSuffix(format, `""`)))
		hostImage := strings.Replace(image(), "image", "hostImage", 1)
		targets = append(targets, fmt.Sprintf("{machineRef: %s-%d, phase: %s, input: {%s%s}}", name, n, phase, hostImage, format))
	}
	return append(all, stored{"machineoperations", object(t, "machineoperations", name, "{"+replace1+", status: {targets: ["+strings.Join(targets, ", ")+"]}}"), legacy})
}

// inParallel does something with each object, several at a time.
func inParallel(t *testing.T, all []stored, do func(stored) error) {
	t.Helper()
	errs := make([]error, len(all))
	var group sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range all {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(all[i])
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
}
