package operation

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

func TestNext(t *testing.T) {
	called := &v1alpha3.ProviderOperation{Provider: "p", OperationID: "o"}
	for name, test := range map[string]struct {
		target v1alpha3.OperationTarget
		want   action
	}{
		"frozen":                       {v1alpha3.OperationTarget{Phase: v1alpha3.OperationPending}, attempt},
		"without a phase":              {v1alpha3.OperationTarget{}, attempt},
		"in progress, nothing begun":   {v1alpha3.OperationTarget{Phase: v1alpha3.OperationInProgress}, attempt},
		"an attempt without an answer": {v1alpha3.OperationTarget{Attempts: 1}, lookUp},
		"half an answer":               {v1alpha3.OperationTarget{Attempts: 1, ProviderOperation: &v1alpha3.ProviderOperation{Provider: "p"}}, lookUp},
		"accepted":                     {v1alpha3.OperationTarget{Attempts: 1, ProviderOperation: called}, poll},
		"accepted, phase lost":         {v1alpha3.OperationTarget{Phase: v1alpha3.OperationPending, ProviderOperation: called}, poll},
		"complete":                     {v1alpha3.OperationTarget{Phase: v1alpha3.OperationComplete, Attempts: 1, ProviderOperation: called}, none},
		"failed":                       {v1alpha3.OperationTarget{Phase: v1alpha3.OperationFailed}, none},
	} {
		require.Equal(t, test.want, next(test.target), name)
	}
}

func TestOutcome(t *testing.T) {
	target := func(phase v1alpha3.OperationPhase, attempts int32) v1alpha3.OperationTarget {
		return v1alpha3.OperationTarget{Phase: phase, Attempts: attempts}
	}
	pending, running := target(v1alpha3.OperationPending, 0), target(v1alpha3.OperationInProgress, 1)
	complete, failed := target(v1alpha3.OperationComplete, 1), target(v1alpha3.OperationFailed, 0)
	for want, cases := range map[v1alpha3.OperationPhase][][]v1alpha3.OperationTarget{
		v1alpha3.OperationPending:    {{pending}, {pending, pending}},
		v1alpha3.OperationInProgress: {{{Phase: v1alpha3.OperationInProgress, ProviderOperation: &v1alpha3.ProviderOperation{OperationID: "o"}}}, {running}, {pending, running}, {failed, running}, {complete, pending}},
		v1alpha3.OperationComplete:   {{complete}, {complete, complete}},
		v1alpha3.OperationFailed:     {{failed}, {complete, failed}},
	} {
		for _, targets := range cases {
			require.Equal(t, want, outcome(targets), "%+v", targets)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Base: time.Second, Cap: 5 * time.Minute}
	require.Equal(t, time.Second, b.after(1))
	require.Equal(t, 2*time.Second, b.after(2))
	require.Equal(t, 8*time.Second, b.after(4))
	for _, attempts := range []int32{20, 70, math.MaxInt32} {
		require.Equal(t, 5*time.Minute, b.after(attempts))
	}
}

// With a clock that was set back, an attempt does not wait; otherwise it does.
func TestUntilNextAttempt(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := &Reconciler{Clock: clocktesting.NewFakePassiveClock(now), Backoff: Backoff{Base: time.Minute, Cap: time.Hour}}
	for name, test := range map[string]struct {
		last *metav1.Time
		want time.Duration
	}{
		"never":         {nil, 0},
		"just now":      {&metav1.Time{Time: now}, 2 * time.Minute},
		"a while ago":   {&metav1.Time{Time: now.Add(-time.Minute)}, time.Minute},
		"long ago":      {&metav1.Time{Time: now.Add(-time.Hour)}, 0},
		"in the future": {&metav1.Time{Time: now.Add(time.Hour)}, 0},
	} {
		require.Equal(t, test.want, r.untilNextAttempt(v1alpha3.OperationTarget{Attempts: 2, LastAttemptAt: test.last}), name)
	}
}

// An operation is read with any times that other clients wrote into it.
func TestTimesThatGoCannotParse(t *testing.T) {
	raw := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"operationKind": "HostReplace", "machineRef": "a"},
		"status": map[string]any{"phase": "InProgress", "startedAt": "yesterday", "completedAt": "2026-01-01T00:00:00Z",
			"conditions": []any{map[string]any{"type": "Theirs", "lastTransitionTime": "never"}},
			"targets":    []any{map[string]any{"machineRef": "a", "startedAt": "2026-01-01t00:00:00z", "attempts": int64(1)}}},
	}}
	r, err := newRecord(raw)
	require.NoError(t, err)
	require.Equal(t, int32(1), r.Status.Targets[0].Attempts)
	require.Nil(t, r.Status.StartedAt)
	require.NotNil(t, r.Status.CompletedAt)
	r.Status.Phase = v1alpha3.OperationComplete
	r.say(0, "done")
	r.setCondition("Ours", metav1.ConditionTrue, "Because", "", time.Unix(1_800_000_000, 0))
	patch, _, err := r.patch()
	require.NoError(t, err)
	require.JSONEq(t, `{"metadata":{"resourceVersion":""},"status":{"phase":"Complete",
		"conditions":[{"type":"Theirs","lastTransitionTime":"never"},{"type":"Ours","status":"True","reason":"Because","message":"","lastTransitionTime":"2027-01-15T08:00:00Z"}],
		"targets":[{"machineRef":"a","startedAt":"2026-01-01t00:00:00z","attempts":1,"message":"done"}]}}`, string(patch), "they are written back as they were")
}

func TestReasonOf(t *testing.T) {
	require.Equal(t, resolve.ProviderFailed, reasonOf("ProviderFailed"))
	for _, stage := range []string{"", "Reimaging host", "1st", "x-"} {
		require.Equal(t, resolve.TargetFailed, reasonOf(stage), stage)
	}
}

func TestExpiresIn(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	op := func(ttl *int32, completed *time.Time) *v1alpha3.MachineOperation {
		op := &v1alpha3.MachineOperation{}
		op.Spec.TTLSecondsAfterFinished = ttl
		if completed != nil {
			op.Status.CompletedAt = &metav1.Time{Time: *completed}
		}
		return op
	}
	for name, test := range map[string]struct {
		ttl       *int32
		completed *time.Time
		left      time.Duration
		collected bool
	}{
		"no TTL":               {nil, &now, 0, false},
		"not completed":        {new(int32(0)), nil, 0, false},
		"at once":              {new(int32(0)), &now, 0, true},
		"long ago":             {new(int32(5)), new(now.Add(-time.Hour)), 0, true},
		"soon":                 {new(int32(60)), new(now.Add(-20 * time.Second)), 40 * time.Second, true},
		"a clock that is fast": {new(int32(0)), new(now.Add(time.Hour)), time.Hour, true},
		"forever, nearly":      {new(int32(math.MaxInt32)), &now, math.MaxInt32 * time.Second, true},
	} {
		left, collected := expiresIn(op(test.ttl, test.completed), now)
		require.Equal(t, test.collected, collected, name)
		require.Equal(t, test.left, left, name)
		require.GreaterOrEqual(t, left, time.Duration(0), name)
	}
}

func many(n int, image string) []resolve.Candidate {
	var all []resolve.Candidate
	for i := range n {
		machine := &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rack-%05d", i), UID: "11111111-2222-3333-4444-555555555555", Generation: 1}}
		all = append(all, resolve.Candidate{Machine: machine, Result: resolve.Result{Pair: resolve.Pair{Image: image, Format: v1alpha3.CloudInit}, ImageSource: resolve.FromMachine, FormatSource: resolve.FromMachine}})
	}
	return all
}

// Too many targets are refused at the start. The largest allowed number still fits into
// an object when every target has its longest message.
func TestFreezeIsBounded(t *testing.T) {
	image := strings.Repeat("i", 200)
	_, fault := freeze(many(6001, "x"))
	require.Equal(t, resolve.TooManyTargets, fault.Reason)
	require.Contains(t, fault.Message, "more than 6000 Machines match, which is as many as an operation holds; select fewer")
	_, fault = freeze(many(5000, image))
	require.Contains(t, fault.Message, "5000 Machines match, and their targets may take")
	_, fault = freeze(many(600, strings.Repeat("i", v1alpha3.MaxImageBytes)))
	require.Contains(t, fault.Message, "select fewer")

	n := 100
	for ; ; n += 10 {
		if _, fault := freeze(many(n, image)); fault.Found() {
			break
		}
	}
	targets, fault := freeze(many(n-10, image))
	require.Empty(t, fault)
	now := timestamp(time.Now())
	for i := range targets {
		target := &targets[i]
		target.Message, target.Stage, target.Phase, target.Attempts = strings.Repeat("m", maxMessage), "IgnitionNotDeliverable", v1alpha3.OperationInProgress, math.MaxInt32
		target.StartedAt, target.CompletedAt, target.LastAttemptAt = now, now, now
		target.ProviderOperation = &v1alpha3.ProviderOperation{Provider: strings.Repeat("p", 60), OperationID: strings.Repeat("o", 120)}
	}
	raw, err := json.Marshal(targets)
	require.NoError(t, err)
	require.Less(t, len(raw), 1_300_000, "%d targets", n-10)
}

func TestBounded(t *testing.T) {
	require.Equal(t, "short", bounded("short"))
	require.Len(t, bounded(strings.Repeat("x", 100_000)), maxMessage)
	cut := bounded(strings.Repeat("é", maxMessage))
	require.LessOrEqual(t, len(cut), maxMessage)
	require.True(t, strings.HasSuffix(cut, "é..."), "no character is cut in two")
}

// A status write has only the changed fields, and carries the resourceVersion.
func TestPatch(t *testing.T) {
	raw := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "op", "resourceVersion": "7"},
		"status": map[string]any{"theirs": int64(9007199254740993), "phase": "Pending",
			"targets": []any{map[string]any{"machineRef": "a", "serial": int64(9223372036854775807)}}},
	}}
	r, err := newRecord(raw)
	require.NoError(t, err)
	_, changed, err := r.patch()
	require.NoError(t, err)
	require.False(t, changed)
	r.Status.Targets[0].Phase = v1alpha3.OperationFailed
	patch, changed, err := r.patch()
	require.NoError(t, err)
	require.True(t, changed)
	require.JSONEq(t, `{"metadata":{"resourceVersion":"7"},"status":{"targets":[{"machineRef":"a","serial":9223372036854775807,"phase":"Failed"}]}}`, string(patch))
	require.Contains(t, string(patch), "9223372036854775807")
	require.NotContains(t, raw.Object["status"].(map[string]any)["targets"].([]any)[0], "phase", "what was read stays as it was")
}

func TestUserData(t *testing.T) {
	u, err := NewUserData(nil)
	require.NoError(t, err)
	text, err := u.Render("worker-1")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "#cloud-config\n"))
	require.NotContains(t, string(text), "ProvisioningFormat")
	var content struct {
		Files []struct{ Path, Content string } `json:"write_files"`
	}
	require.NoError(t, yaml.Unmarshal(text, &content))
	require.Len(t, content.Files, 1)
	require.Equal(t, AgentConfigPath, content.Files[0].Path)
	require.JSONEq(t, `{"MachineName":"worker-1"}`, content.Files[0].Content)

	again, err := u.Render("worker-2")
	require.NoError(t, err)
	require.NotContains(t, string(again), "worker-1", "a rendering leaves nothing behind")

	u, err = NewUserData([]byte("write_files:\n- {path: /etc/motd, content: hi}\n"))
	require.NoError(t, err)
	text, err = u.Render("worker-1")
	require.NoError(t, err)
	require.Contains(t, string(text), "/etc/motd")
	require.Contains(t, string(text), AgentConfigPath)

	for text, words := range map[string]string{
		"- a":             "not a cloud-config in YAML",
		"write_files: {}": "write_files must be a list",
		"a: " + strings.Repeat("x", maxUserDataBytes): "shorten the template",
	} {
		_, err = NewUserData([]byte(text))
		require.ErrorContains(t, err, words)
	}
	_, err = NewUserData([]byte("# nothing\n"))
	require.NoError(t, err)
}

// The real cloud-init accepts the rendered user data.
func TestUserDataIsCloudConfig(t *testing.T) {
	if _, err := exec.LookPath("cloud-init"); err != nil {
		t.Skip("cloud-init is not installed")
	}
	u, err := NewUserData(nil)
	require.NoError(t, err)
	text, err := u.Render("worker-1")
	require.NoError(t, err)
	check := func(text []byte) ([]byte, error) {
		path := filepath.Join(t.TempDir(), "user-data")
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return exec.CommandContext(t.Context(), "cloud-init", "schema", "--config-file", path).CombinedOutput()
	}
	out, err := check(text)
	require.NoError(t, err, "%s", out)
	out, err = check([]byte("#cloud-config\nruncmd: {}\n"))
	require.Error(t, err, "%s", out)
}

// A reference that cannot be a name is not requested: the API server would reject the
// path, and the target would wait forever.
func TestMachineRefThatIsNoName(t *testing.T) {
	for _, ref := range []string{"", "A/../b", ".."} {
		_, err := (&Reconciler{}).readMachine(t.Context(), ref)
		require.True(t, apierrors.IsNotFound(err), "%q: %v", ref, err)
	}
}
