package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// situation is an operation with two Machines, and what becomes of it.
type situation struct {
	a, b     string // what the Machines say of their hosts
	more     string // fields of the spec of Machine b
	observed string // status of Machine b
	fields   string // of the spec of the operation
	targetA  string // recorded for Machine a
	targetB  string // recorded for Machine b
	change   func(t *testing.T, rack string)
	want     string // the reason for the operation
	wantB    string // the reason for the last target
}

// situations are all that an operation can be in before its first call.
func situations(c client) map[string]situation {
	const (
		cloudInit = "image: img-m, provisioningFormat: CloudInit"
		ignition  = "image: img-m, provisioningFormat: Ignition"
		selected  = "machineSelector: {matchLabels: {rack: RACK}}"
		named     = "machineRef: RACK-a"
		frozen    = "input: {hostImage: img-old, provisioningFormat: CloudInit, machineUID: UID, provider: Simulated, providerID: ID}"
		legacy    = "input: {hostImage: img-old}"
	)
	return map[string]situation{
		"both replaced":     {a: cloudInit, b: cloudInit, fields: selected},
		"one named":         {a: cloudInit, b: cloudInit, fields: named},
		"not declared":      {a: cloudInit, b: "image: img-m", observed: "Ignition", fields: selected, want: "FormatNotDeclared", wantB: "FormatNotDeclared"},
		"no version":        {a: cloudInit, more: ", configurationRef: {name: nope}", fields: selected, want: "VersionNotFound", wantB: "VersionNotFound"},
		"one is Ignition":   {a: ignition, b: cloudInit, fields: selected, want: "IgnitionNotDeliverable", wantB: "Halted"},
		"both are Ignition": {a: ignition, b: ignition, fields: selected, want: "IgnitionNotDeliverable", wantB: "IgnitionNotDeliverable"},
		"nothing selected":  {a: cloudInit, b: cloudInit, fields: "machineSelector: {matchLabels: {rack: none-RACK}}", want: "NothingSelected"},
		"parameters":        {a: cloudInit, b: cloudInit, fields: selected + ", parameters: {maxInFlight: many}", want: "InvalidParameters"},
		"named twice":       {a: cloudInit, b: cloudInit, fields: named + ", " + selected, want: "InvalidSelection"},
		"one host":          {a: cloudInit, b: cloudInit, fields: selected, change: shareHost(c), want: "HostShared"},
		"another operation": {a: cloudInit, b: cloudInit, fields: selected, change: claimFor(c, false), want: "OtherOperation"},
		"the name is used":  {a: cloudInit, b: cloudInit, fields: selected, change: claimFor(c, true), want: "NameUsed"},

		"frozen":                    {a: cloudInit, b: cloudInit, fields: selected, targetA: frozen, targetB: frozen},
		"frozen, and halted":        {a: cloudInit, b: cloudInit, fields: selected, targetA: frozen + ", phase: Failed, stage: ProviderFailed, attempts: 1, message: it does not boot", targetB: frozen, wantB: "Halted"},
		"frozen, more may fail":     {a: cloudInit, b: cloudInit, fields: selected + ", parameters: {maxFailures: '2'}", targetA: frozen + ", phase: Failed, stage: ProviderFailed, attempts: 1", targetB: frozen},
		"frozen, then deleted":      {a: cloudInit, b: cloudInit, fields: selected, targetA: frozen, targetB: frozen, change: deleteMachine(c), wantB: "MachineNotFound"},
		"frozen, then another host": {a: cloudInit, b: cloudInit, fields: selected, targetA: frozen, targetB: frozen, change: patchB(c, `{"host":{"external":{"providerID":"elsewhere"}}}`), wantB: "ProviderChanged"},
		"frozen for another UID":    {a: cloudInit, b: cloudInit, fields: selected, targetA: frozen, targetB: strings.Replace(frozen, ": UID", ": another", 1), wantB: "MachineReplaced"},
		"frozen Ignition":           {a: cloudInit, b: cloudInit, fields: selected, targetA: frozen, targetB: strings.Replace(frozen, "CloudInit", "Ignition", 1), wantB: "IgnitionNotDeliverable"},
		"added by others":           {a: cloudInit, b: cloudInit, fields: named, targetA: frozen, targetB: frozen, wantB: "TargetMismatch"},
		"frozen without pins":       {a: cloudInit, b: cloudInit, fields: selected, targetA: frozen, targetB: "input: {hostImage: img-old, provisioningFormat: CloudInit}", wantB: "TargetMismatch"},
		"claimed by another":        {a: cloudInit, b: cloudInit, fields: selected, targetA: frozen, targetB: frozen, change: claimFor(c, false), want: "OtherOperation"},
		"legacy":                    {a: cloudInit, b: cloudInit, fields: selected, targetA: legacy, targetB: legacy},
		"legacy, not declared":      {a: cloudInit, b: "image: img-m", observed: "Ignition", fields: selected, targetA: legacy, targetB: legacy, wantB: "NotResolved"},
		"legacy, now Ignition":      {a: cloudInit, b: ignition, fields: selected, targetA: legacy, targetB: legacy, wantB: "IgnitionNotDeliverable"},
	}
}

// arrange creates the objects of a situation.
func (s situation) arrange(t *testing.T, c client) (rack, op string) {
	t.Helper()
	rack, op = uniqueName(), uniqueName()
	add := func(suffix, fields, more, observed string) {
		u := object(t, "machines", rack+suffix, "spec: {"+host(fields)+more+"}")
		u.SetLabels(map[string]string{"rack": rack})
		if observed != "" {
			u.Object["status"] = map[string]any{"observedProvisioningFormat": observed}
		}
		store(t, c, "machines", u)
	}
	add("-a", s.a, "", "")
	add("-b", s.b, s.more, s.observed)
	createOperation(t, c, op, strings.ReplaceAll(s.fields, "RACK", rack))
	if s.targetA != "" {
		recordTargets(t, c, op, rack, s.targetA, s.targetB)
	}
	if s.change != nil {
		s.change(t, rack)
	}
	return rack, op
}

// explain says of an operation what the controller then does: the same reason and
// words for the operation, the same reason for each target, and no refusal where
// the hosts are replaced.
func TestExplainForetells(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for name, test := range situations(c) {
		t.Run(name, func(t *testing.T) {
			rack, op := test.arrange(t, c)
			stdout, stderr, code := plugin(t, ours, "explain", "mop/"+op, "-o", "json")
			var foretold struct {
				Refused, Reason string
				Targets         []struct{ Reason, Refused string }
			}
			require.NoError(t, json.Unmarshal([]byte(stdout), &foretold), stderr)
			require.Equal(t, test.want, foretold.Reason)
			require.Equal(t, test.want == "" && test.wantB == "", code == 0)
			if len(foretold.Targets) > 0 {
				require.Equal(t, test.wantB, foretold.Targets[len(foretold.Targets)-1].Reason)
			}

			r, dir := newReconciler(t, c, asRead)
			done := reconcileUntilFinished(t, c, r, op)
			recorded, _, _ := unstructured.NestedSlice(done.Object, "status", "targets")
			if test.want != "" {
				require.Equal(t, [2]string{test.want, foretold.Refused}, [2]string{reason(done), message(done)})
				require.Zero(t, actsOn(t, dir, rack+"-a")+actsOn(t, dir, rack+"-b"))
			} else {
				require.Len(t, recorded, len(foretold.Targets))
			}
			for i := range recorded {
				target := recorded[i].(map[string]any)
				switch want := foretold.Targets[i]; {
				case test.want != "" && test.targetA != "": // all of them fail for the operation
					require.Equal(t, test.want, target["stage"])
				case want.Reason == "":
					require.Contains(t, []any{"Done", "ProviderFailed"}, target["stage"], target["message"])
				default:
					require.Equal(t, want.Reason, target["stage"])
					if test.want == "" {
						require.Equal(t, want.Refused, target["message"])
					}
				}
			}
		})
	}
}

// recordTargets writes the status of an operation that has targets for Machines a
// and b. If they have formats, their pairs are frozen.
func recordTargets(t *testing.T, c client, operation, rack string, fields ...string) {
	t.Helper()
	var targets []string
	for i, suffix := range []string{"-a", "-b"} {
		m := get(t, c, "machines", rack+suffix)
		id, _, _ := unstructured.NestedString(m.Object, "spec", "host", "external", "providerID")
		pins := strings.NewReplacer("machineUID: UID", "machineUID: "+string(m.GetUID()), "providerID: ID", "providerID: "+id)
		targets = append(targets, fmt.Sprintf("{machineRef: %s, %s}", m.GetName(), pins.Replace(fields[i])))
	}
	conditions := ""
	if strings.Contains(fields[0], "provisioningFormat") {
		conditions = ", conditions: [{type: Frozen, status: 'True', reason: PairFrozen, message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}]"
	}
	writeStatus(t, c, "machineoperations", object(t, "machineoperations", operation, "status: {phase: InProgress, targets: ["+strings.Join(targets, ", ")+"]"+conditions+"}"))
}

func patchB(c client, spec string) func(*testing.T, string) {
	return func(t *testing.T, rack string) { require.NoError(t, patchSpec(t, c, rack+"-b", spec)) }
}

func deleteMachine(c client) func(*testing.T, string) {
	return func(t *testing.T, rack string) {
		require.NoError(t, c.of("machines").Delete(t.Context(), rack+"-b", metav1.DeleteOptions{}))
	}
}

// shareHost gives Machine b the host of Machine a.
func shareHost(c client) func(*testing.T, string) {
	return func(t *testing.T, rack string) {
		id, _, _ := unstructured.NestedString(get(t, c, "machines", rack+"-a").Object, "spec", "host", "external", "providerID")
		patchB(c, `{"host":{"external":{"providerID":"`+id+`"}}}`)(t, rack)
	}
}

// claimFor gives the claim on the host of Machine b to an operation that has not
// started or, if it is used, to one that had the name of the tested operation.
func claimFor(c client, used bool) func(*testing.T, string) {
	return func(t *testing.T, rack string) {
		t.Helper()
		ops, err := c.of("machineoperations").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		last := ops.Items[0]
		for _, op := range ops.Items { // the one that was created for this test
			selector, _, _ := unstructured.NestedString(op.Object, "spec", "machineSelector", "matchLabels", "rack")
			if selector == rack {
				last = op
			}
		}
		holder := last.GetName() + "/" + "00000000-0000-0000-0000-000000000000"
		if !used {
			other := createOperation(t, c, uniqueName(), "machineRef: elsewhere")
			holder = other.GetName() + "/" + string(other.GetUID())
		}
		name, _ := claimOf(t, c, rack+"-b")
		lease := fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"holderIdentity":%q,"leaseTransitions":1}}`, name, holder)
		created := &unstructured.Unstructured{}
		require.NoError(t, json.Unmarshal([]byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",`+lease[1:]), &created.Object))
		out, err := c.cluster.Kubectl(t.Context(), encode(t, created.Object), "create", "-n", resolve.DefaultClaimNamespace, "-f", "-")
		require.NoError(t, err, out)
	}
}
