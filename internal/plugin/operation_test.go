package plugin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// explain refuses a target that the controller would fail, with the same reason, and
// no other target.
func TestExplainTargets(t *testing.T) {
	const (
		img       = "spec: {host: {image: img-a, provisioningFormat: CloudInit, external: {provider: p, providerID: bay-1}}}"
		frozen    = "input: {hostImage: img-a, provisioningFormat: CloudInit, machineUID: u-1, provider: p, providerID: bay-1}"
		legacy    = "input: {hostImage: img-a}"
		ignition  = "input: {hostImage: img-a, provisioningFormat: Ignition}"
		declaring = "spec: {host: {image: img-b, provisioningFormat: Ignition}}"
	)
	running, complete := "phase: InProgress", "phase: Complete"
	for name, test := range map[string]struct {
		metadata, machine string // no machine: it does not exist
		phase, target     string // no target: none is recorded yet
		reason            string // empty: it is not refused
		says              []string
	}{
		"as frozen":               {"uid: u-1", img, running, frozen, "", []string{"frozen    img-a, CloudInit", "today     the Machine says the same"}},
		"gone":                    {"", "", running, frozen, "MachineNotFound", []string{"refused   MachineNotFound: the Machine does not exist any more", "today     the Machine does not exist"}},
		"gone, legacy":            {"", "", running, legacy, "MachineNotFound", []string{"snapshot  img-a", "predates the format field", "MachineNotFound"}},
		"gone, ignition":          {"", "", running, ignition, "IgnitionNotDeliverable", []string{"today the Machine does not exist"}},
		"gone, bad pair":          {"", "", running, "input: {hostImage: img-a, provisioningFormat: weird}", "InvalidPair", nil},
		"going, ignition":         {"deletionTimestamp: '2026-01-01T00:00:00Z'", declaring, running, ignition, "IgnitionNotDeliverable", nil},
		"gone, not begun":         {"", "", running, "", "MachineNotFound", []string{"an operation does not wait for it"}},
		"going":                   {"uid: u-1, deletionTimestamp: '2026-01-01T00:00:00Z'", img, running, frozen, "MachineDeleting", []string{"MachineDeleting: the Machine is being deleted"}},
		"going, legacy":           {"deletionTimestamp: '2026-01-01T00:00:00Z'", img, running, legacy, "MachineDeleting", nil},
		"going, not begun":        {"deletionTimestamp: '2026-01-01T00:00:00Z'", img, running, "", "MachineDeleting", nil},
		"another Machine":         {"uid: u-2", img, running, frozen, "MachineReplaced", []string{"UID u-1, and", "differs   machineUID"}},
		"another provider":        {"uid: u-1", strings.Replace(img, "provider: p", "provider: q", 1), running, frozen, "ProviderChanged", []string{"differs   provider"}},
		"another host":            {"uid: u-1", strings.Replace(img, "bay-1", "bay-2", 1), running, frozen, "ProviderChanged", []string{"differs   providerID"}},
		"ignition":                {"", declaring, running, ignition, "IgnitionNotDeliverable", []string{"generates cloud-init only"}},
		"ignition, not begun":     {"", declaring, running, "", "IgnitionNotDeliverable", nil},
		"bad pair":                {"", img, running, "input: {hostImage: img-a, provisioningFormat: weird}", "InvalidPair", []string{`unsupported value "weird"`}},
		"unreadable":              {"uid: u-1", img + "\nstatus: {observedProvisioningFormat: 7}", running, frozen, "Unreadable", []string{"frozen    img-a, CloudInit", "the Machine cannot be read: "}},
		"unreadable, legacy":      {"uid: u-1", img + "\nstatus: {observedProvisioningFormat: 7}", running, legacy, "Unreadable", []string{"snapshot  img-a", "the Machine cannot be read: "}},
		"unreadable, not begun":   {"uid: u-1", img + "\nstatus: {observedProvisioningFormat: 7}", running, "", "Unreadable", []string{"the Machine cannot be read: "}},
		"legacy":                  {"", img, running, legacy, "", []string{"snapshot  img-a, CloudInit as of today"}},
		"legacy, undeclared":      {"", "spec: {host: {image: img-b}}\nstatus: {observedProvisioningFormat: Ignition}", running, legacy, "NotResolved", []string{"snapshot  img-a, and no format today: it predates the format field", "must be declared"}},
		"legacy, ignition":        {"", declaring, running, legacy, "IgnitionNotDeliverable", nil},
		"called already":          {"uid: u-2", declaring, running, frozen + ", attempts: 1, providerOperation: {provider: p, operationID: job-1}", "", []string{"differs   format, image, machineUID, provider, providerID"}},
		"call not answered":       {"uid: u-2", img, running, frozen + ", attempts: 1", "MachineReplaced", nil},
		"target complete":         {"uid: u-1", img, running, ignition + ", phase: Complete", "", nil},
		"target failed, gone":     {"", "", running, frozen + ", phase: Failed", "", []string{"today     the Machine does not exist"}},
		"target complete, legacy": {"", declaring, running, legacy + ", phase: Complete", "", []string{"snapshot  img-a, without a format: it predates the format field"}},
		"operation complete":      {"uid: u-1", declaring, complete, ignition, "", nil},
		"operation failed, gone":  {"", "", "phase: Failed", ignition, "", nil},
		"operation failed early":  {"", declaring, "phase: Failed", "", "", []string{"none; it ended before one was frozen"}},
		"complete, unreadable":    {"uid: u-1", "status: {observedProvisioningFormat: 7}", complete, frozen, "", []string{"the Machine cannot be read: "}},
	} {
		t.Run(name, func(t *testing.T) {
			manifests := head + "MachineOperation\nmetadata: {name: swap, " + before(time.Minute) + "}\nspec: {operationKind: HostReplace, machineRef: a}\nstatus: {" + test.phase
			if test.target != "" {
				manifests += ", targets: [{machineRef: a, " + test.target + "}]"
			}
			manifests += "}"
			if test.machine != "" {
				manifests += "\n---\n" + head + "Machine\nmetadata: {name: a, " + test.metadata + "}\n" + test.machine
			}
			cluster := newStub(t, manifests)
			want := 0
			if test.reason != "" {
				want = exitFindings
			}
			stdout, stderr, code := cluster.of(t, "explain", "mop/swap")
			require.Equal(t, want, code, stdout+stderr)
			flat := strings.Join(strings.Fields(stdout), " ") // without line breaks
			for _, words := range test.says {
				require.Contains(t, flat, strings.Join(strings.Fields(words), " "))
			}
			requireNarrow(t, stdout)
			if test.machine != "" && strings.Contains(test.machine, "7}") {
				require.NotContains(t, stdout, "says the same", "that is not known")
			}

			stdout, _, code = cluster.of(t, "explain", "mop/swap", "-o", "json")
			require.Equal(t, want, code)
			var e operationExplanation
			require.NoError(t, json.Unmarshal([]byte(stdout), &e))
			if name == "operation failed early" {
				require.Empty(t, e.Targets)
				return
			}
			require.Len(t, e.Targets, 1)
			require.EqualValues(t, test.reason, e.Targets[0].Reason)
			require.Equal(t, test.reason == "", e.Targets[0].Refused == "")
		})
	}
}

// An operation that is being deleted does not continue.
func TestExplainOperationThatIsDeleted(t *testing.T) {
	_, stderr, code := newStub(t, head+"MachineOperation\nmetadata: {name: swap, deletionTimestamp: '2026-01-01T00:00:00Z'}\nspec: {operationKind: HostReplace, machineRef: a}\nstatus: {phase: InProgress, targets: [{machineRef: a, input: {provisioningFormat: Ignition}}]}").of(t, "explain", "mop/swap")
	require.Zero(t, code, stderr)
}

// A reference that cannot be the name of a Machine is not found. Other targets are
// explained as usual.
func TestExplainTargetThatIsNoName(t *testing.T) {
	const input = ", input: {hostImage: img-a, provisioningFormat: CloudInit}}"
	for _, ref := range []string{"A/../b", "''", "..", "'a b'"} {
		op := head + "MachineOperation\nmetadata: {name: swap, " + before(time.Minute) + "}\nspec: {operationKind: HostReplace, machineRef: " + ref + "}\n"
		fine := "---\n" + head + "Machine\nmetadata: {name: a}\nspec: {host: {image: img-a, provisioningFormat: CloudInit}}"
		stdout, stderr, code := newStub(t, op+"status: {targets: [{machineRef: "+ref+input+", {machineRef: a"+input+"]}\n"+fine).of(t, "explain", "mop/swap")
		require.Equal(t, exitFindings, code, stderr)
		require.Contains(t, stdout, "refused   MachineNotFound: the Machine does not exist any more")
		require.Contains(t, stdout, "today     the Machine says the same")
		if ref != "''" { // an empty one is an invalid selection
			stdout, stderr, code = newStub(t, op+fine).of(t, "explain", "mop/swap", "-o", "json")
			require.Equal(t, exitFindings, code, stderr)
			require.Contains(t, stdout, `"reason": "MachineNotFound"`)
		}
	}
}

// For many targets, the Machines are listed; for few, each is read.
func TestExplainReadsManyMachinesAtOnce(t *testing.T) {
	for targets, want := range map[int]int{2: 2, 200: 0} {
		var manifests, list []string
		for n := range targets {
			manifests = append(manifests, head+fmt.Sprintf("Machine\nmetadata: {name: m-%d}\nspec: {host: {image: img-a, provisioningFormat: CloudInit}}", n))
			list = append(list, fmt.Sprintf("{machineRef: m-%d, input: {hostImage: img-a, provisioningFormat: CloudInit}}", n))
		}
		list = append(list, "{machineRef: gone, phase: Complete, input: {hostImage: img-a, provisioningFormat: CloudInit}}")
		manifests = append(manifests, head+"MachineOperation\nmetadata: {name: swap}\nspec: {operationKind: HostReplace}\nstatus: {targets: ["+strings.Join(list, ", ")+"]}")
		cluster := newStub(t, strings.Join(manifests, "\n---\n"))
		stdout, stderr, code := cluster.of(t, "explain", "mop/swap")
		require.Zero(t, code, stderr)
		require.Equal(t, targets, strings.Count(stdout, "the Machine says the same"))
		require.Equal(t, 1, strings.Count(stdout, "the Machine does not exist"))
		single := 0
		for _, path := range cluster.asked {
			if strings.HasPrefix(path, "machines/m-") {
				single++
			}
		}
		require.Equal(t, want, single)
	}
}
