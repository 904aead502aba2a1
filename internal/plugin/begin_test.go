package plugin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// before returns the creation time of an object of the given age.
func before(ago time.Duration) string {
	return "creationTimestamp: '" + time.Now().Add(-ago).UTC().Format(time.RFC3339) + "'"
}

// explain refuses an operation that the controller would refuse as a whole, with the
// same reason and message.
func TestExplainOperationAsAWhole(t *testing.T) {
	const (
		named    = "machineRef: a"
		selected = "machineSelector: {matchLabels: {rack: '7'}}"
		target   = "targets: [{machineRef: a, input: {hostImage: img-a, provisioningFormat: Ignition}}]"
		copied   = ", annotations: {hostformat.unbounded-cloud.io/started: "
	)
	now, old, early := before(time.Minute), before(2*time.Hour), before(48*time.Hour)
	for name, test := range map[string]struct {
		metadata, spec, status string
		created                string // Machine a; empty: it does not exist
		reason                 string // empty: the operation is not refused
		says                   string
		machines               []string
		targetReason           string // of the first
	}{
		"named":                  {now, named, "", early, "", "waits for nobody: a Machine has no provider (spec.host.external.provider), and no controller starts the operation", []string{"a"}, ""},
		"selected":               {now, selected, "", early, "", "frozen not yet", []string{"a", "b"}, ""},
		"too old":                {old, named, "", early, "TooOld", "refused TooOld: the operation was not started within 1h0m0s", []string{"a"}, ""},
		"too old, selected":      {old, selected, "", early, "TooOld", "targets none", nil, ""},
		"too old, and gone":      {old, named, "", "", "", "an operation does not wait for it", []string{"a"}, "MachineNotFound"},
		"too old, but frozen":    {old, named, target, early, "", "", []string{"a"}, "IgnitionNotDeliverable"},
		"too old, but finished":  {old, named, "phase: Failed", early, "", "targets none; it ended before one was frozen", nil, ""},
		"newer Machine":          {before(2 * time.Minute), named, "", now, "MachineIsNewer", `Machine "a" was created after this operation`, []string{"a"}, ""},
		"newer Machine selected": {before(2 * time.Minute), selected, "", now, "MachineIsNewer", `Machine "a" was created after this operation`, []string{"a", "b"}, ""},
		"both":                   {now, named + ", " + selected, "", early, "InvalidSelection", "exactly one of spec.machineRef and spec.machineSelector", []string{"a"}, ""},
		"neither":                {now, "ttlSecondsAfterFinished: 1", "", early, "InvalidSelection", "exactly one of spec.machineRef and spec.machineSelector", nil, ""},
		"empty":                  {now, "machineSelector: {}", "", early, "InvalidSelection", "every host of the fleet", nil, ""},
		"no selector":            {now, "machineSelector: {matchExpressions: [{key: rack, operator: Like}]}", "", early, "InvalidSelection", "is not a label selector", nil, ""},
		"nothing selected":       {now, "machineSelector: {matchLabels: {rack: '8'}}", "", early, "NothingSelected", "no Machine matches spec.machineSelector", nil, ""},
		"a copy":                 {now + copied + "u-0}", named, "", early, "RestoredCopy", "a copy of the operation with UID u-0", nil, ""},
		"a copy with targets":    {now + copied + "u-0}", named, target, early, "RestoredCopy", "a copy of the operation with UID u-0", []string{"a"}, ""},
		"lost its record":        {now + copied + "u-1}", named, "", early, "RestoredCopy", "lost its record", nil, ""},
		"begun":                  {now + copied + "u-1}", named, target, early, "", "", []string{"a"}, "IgnitionNotDeliverable"},
		"a finished copy":        {now + copied + "u-0}", named, "phase: Complete, " + target, early, "", "", []string{"a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			manifests := head + "MachineOperation\nmetadata: {name: swap, uid: u-1, " + test.metadata + "}\nspec: {operationKind: HostReplace, " + test.spec + "}\nstatus: {" + test.status + "}" +
				"\n---\n" + head + "Machine\nmetadata: {name: b, " + early + ", labels: {rack: '7'}}" +
				"\n---\n" + head + "Machine\nmetadata: {name: c, " + early + "}"
			if test.created != "" {
				manifests += "\n---\n" + head + "Machine\nmetadata: {name: a, " + test.created + ", labels: {rack: '7'}}"
			}
			cluster := newStub(t, manifests)
			want := 0
			if test.reason != "" || test.targetReason != "" {
				want = exitFindings
			}
			stdout, stderr, code := cluster.of(t, "explain", "mop/swap")
			require.Equal(t, want, code, stdout+stderr)
			require.Contains(t, strings.Join(strings.Fields(stdout), " "), test.says)
			requireNarrow(t, stdout)

			stdout, _, code = cluster.of(t, "explain", "mop/swap", "-o", "json")
			require.Equal(t, want, code)
			var e operationExplanation
			require.NoError(t, json.Unmarshal([]byte(stdout), &e))
			require.EqualValues(t, test.reason, e.Reason)
			require.Equal(t, test.reason == "", e.Refused == "")
			var machines []string
			for _, target := range e.Targets {
				machines = append(machines, target.Machine)
			}
			require.Equal(t, test.machines, machines)
			if len(machines) > 0 {
				require.EqualValues(t, test.targetReason, e.Targets[0].Reason)
			}
		})
	}
}

// Of two targets for one Machine, the second is refused, in whatever phase the first
// is.
func TestExplainDuplicateTarget(t *testing.T) {
	const input = "input: {hostImage: img-a, provisioningFormat: CloudInit}"
	for second, reason := range map[string]string{
		"{machineRef: a, " + input + "}":                                          "DuplicateTarget",
		"{machineRef: a, providerOperation: {operationID: job-1}, " + input + "}": "DuplicateTarget",
		"{machineRef: a, phase: Complete, " + input + "}":                         "",
		"{machineRef: b, " + input + "}":                                          "",
	} {
		for _, phase := range []string{"InProgress", "Complete"} {
			cluster := newStub(t, head+"MachineOperation\nmetadata: {name: swap}\nspec: {operationKind: HostReplace}\nstatus: {targets: [{machineRef: a, phase: "+phase+", "+input+"}, "+second+"]}\n---\n"+
				head+"Machine\nmetadata: {name: a}\n---\n"+head+"Machine\nmetadata: {name: b}")
			stdout, _, code := cluster.of(t, "explain", "mop/swap", "-o", "json")
			require.Equal(t, reason != "", code == exitFindings, second)
			var e operationExplanation
			require.NoError(t, json.Unmarshal([]byte(stdout), &e))
			require.Empty(t, e.Targets[0].Reason)
			require.EqualValues(t, reason, e.Targets[1].Reason, second)
		}
	}
}
