package admission

import (
	"context"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const frozenTarget = "status: {targets: [{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}"

// An error that is not enforced is a warning in the same words. Rules about frozen
// state can still deny.
func TestEnforcement(t *testing.T) {
	const ignition = "status: {observedProvisioningFormat: Ignition}"
	for name, test := range map[string]struct {
		resource, was, now, rule, words string
		frozen                          bool
	}{
		"format":     {"machines", "", "spec: {host: {image: a, provisioningFormat: weird}}", "formatValue", `spec.host.provisioningFormat: Unsupported value: "weird"`, false},
		"undeclared": {"machines", "{spec: {}, " + ignition + "}", "spec: {host: {image: a}}", "declareFormat", "spec.host.provisioningFormat: Required value: must be declared", false},
		"deployed":   {"machineconfigurationversions", "{spec: {version: 1}, status: {deployed: true}}", "spec: {version: 2}", "deployedVersion", "spec: Forbidden", false},
		"fleet":      {"machineoperations", "", "spec: {operationKind: HostReplace, machineSelector: {}}", "fleetSelector", "spec.machineSelector: Required value", false},
		"pair":       {"machineoperations/status", frozenTarget, "status: {targets: []}", "frozenPair", "status.targets[worker-1]: Required value: may not be removed", true},
		"operation": {"machineoperations", "{spec: {operationKind: HostReplace, machineRef: worker-1}, " + frozenTarget + "}", "spec: {operationKind: HostReplace, machineRef: worker-2}",
			"begunOperation", "spec.machineRef: Forbidden", true},
		"reboot": {"machineoperations", "{spec: {operationKind: HostReboot, machineRef: worker-1}, status: {phase: InProgress}}", "spec: {operationKind: HostReplace, machineRef: worker-1}",
			"begunOperation", "spec.operationKind: Forbidden", true},
		"target": {"machineoperations/status", "status: {conditions: [{type: Frozen, status: 'True'}]}", "status: {targets: [{machineRef: worker-1}]}",
			"frozenTargets", "status.targets[worker-1]: Forbidden", true},
		"end": {"machineoperations/status", progress("Complete", "Complete", 1), progress("Pending", "Complete", 1), "finalPhase", "status.phase: Forbidden", true},
		"second entry": {"machineoperations/status", frozenTarget, "status: {targets: [{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: CloudInit}}, {machineRef: worker-1}]}",
			"uniqueTarget", "status.targets[1].machineRef: Duplicate value", true},
	} {
		for _, enforcement := range []Enforcement{Deny, Warn, WarnExceptFrozen, "", "unknown"} {
			t.Run(name+"/"+string(enforcement), func(t *testing.T) {
				response := answer(validate, enforcement, request(t, test.resource, test.was, test.now))
				require.Equal(t, test.rule, response.AuditAnnotations["rules"])
				if enforcement != Warn && (enforcement != WarnExceptFrozen || test.frozen) {
					require.False(t, response.Allowed)
					require.Equal(t, "denied", response.AuditAnnotations["outcome"])
					require.Equal(t, int32(http.StatusUnprocessableEntity), response.Result.Code)
					require.Contains(t, response.Result.Message, test.words)
					require.Empty(t, response.Warnings)
					return
				}
				require.True(t, response.Allowed)
				require.Equal(t, "warned", response.AuditAnnotations["outcome"])
				require.Len(t, response.Warnings, 1)
				require.Contains(t, response.Warnings[0], "would be refused: "+test.words)
				require.Less(t, len(response.Warnings[0]), 256)
			})
		}
	}
}

// A write that changes a frozen pair and breaks another rule is denied for the first
// and warned about the second.
func TestEnforcementOfBoth(t *testing.T) {
	response := answer(validate, WarnExceptFrozen, request(t, "machineoperations/status", frozenTarget,
		"status: {targets: [{machineRef: worker-1, input: {hostImage: img-b, provisioningFormat: CloudInit}}, {machineRef: worker-2, input: {provisioningFormat: weird}}]}"))
	require.False(t, response.Allowed)
	require.Len(t, response.Result.Details.Causes, 1)
	require.Equal(t, "status.targets[worker-1].input.hostImage", response.Result.Details.Causes[0].Field)
	require.Len(t, response.Warnings, 1)
	require.Contains(t, response.Warnings[0], "would be refused: status.targets[worker-2].input.provisioningFormat")
	require.Equal(t, "frozenPair,formatValue", response.AuditAnnotations["rules"])
}

func TestTrimmingIsNotEnforcement(t *testing.T) {
	response := answer(mutate, Warn, request(t, "machines", "", "spec: {host: {image: ' a'}}"))
	require.Len(t, response.Patches, 1)
}

func answer(direction func(guard, admission.Request, Enforcement) verdict, enforcement Enforcement, r *admissionv1.AdmissionRequest) admission.Response {
	return handler{direction, enforcement}.Handle(context.Background(), admission.Request{AdmissionRequest: *r})
}

// If an image or a format changes, the audit log says where both would come from, as
// far as that is known from the Machine alone.
func TestSourcesInTheAuditLog(t *testing.T) {
	for name, test := range map[string]struct {
		was, now      string
		image, format string
	}{
		"declared":          {"", "spec: {host: {image: a, provisioningFormat: Ignition}}", "machine", "machine"},
		"observed":          {"{spec: {}, status: {observedProvisioningFormat: CloudInit}}", "spec: {host: {image: a}}", "machine", "observation"},
		"legacy":            {"", "spec: {host: {image: a}}", "machine", "legacy fallback"},
		"format only":       {"", "spec: {host: {provisioningFormat: CloudInit}}", "", "machine"},
		"nothing":           {"", "spec: {}", "", ""},
		"a label only":      {"spec: {host: {image: a}}", "{metadata: {labels: {a: b}}, spec: {host: {image: a}}}", "", ""},
		"typed observation": {"", "{spec: {host: {image: a}}, status: {observedProvisioningFormat: CloudInit}}", "machine", "legacy fallback"},
	} {
		t.Run(name, func(t *testing.T) {
			response := post(t, ValidatePath, request(t, "machines", test.was, test.now))
			require.True(t, response.Allowed)
			require.Equal(t, test.image, response.AuditAnnotations["image-source"])
			require.Equal(t, test.format, response.AuditAnnotations["format-source"])
		})
	}
}

// Counters count each broken rule, and no dry run.
func TestMetrics(t *testing.T) {
	verdict := func(kind, subresource, operation, rule string, o outcome) float64 {
		return testutil.ToFloat64(verdicts.WithLabelValues(kind, subresource, operation, rule, string(o)))
	}
	for name, test := range map[string]struct {
		path       string
		request    *admissionv1.AdmissionRequest
		count      func() float64
		difference float64
	}{
		"clean": {ValidatePath, request(t, "machines", "", "spec: {}"), func() float64 { return verdict("Machine", "", "CREATE", "none", allowed) }, 1},
		"denied": {ValidatePath, request(t, "machines", "spec: {}", "spec: {host: {image: \"a\\u200bb\", provisioningFormat: weird}}"), func() float64 {
			return verdict("Machine", "", "UPDATE", "formatValue", denied) + verdict("Machine", "", "UPDATE", "imageValue", denied)
		}, 2},
		"subresource": {ValidatePath, request(t, "machineoperations/status", frozenTarget, "status: {}"), func() float64 { return verdict("MachineOperation", "status", "UPDATE", "frozenPair", denied) }, 1},
		"unreadable":  {ValidatePath, request(t, "machines", "", "[]"), func() float64 { return verdict("Machine", "", "CREATE", "review", denied) }, 1},
		"trimmed":     {MutatePath, request(t, "machines", "", "spec: {host: {image: ' a'}}"), func() float64 { return testutil.ToFloat64(trims.WithLabelValues("Machine")) }, 1},
		"not trimmed": {MutatePath, request(t, "machines", "", "spec: {host: {image: a}}"), func() float64 { return testutil.ToFloat64(trims.WithLabelValues("Machine")) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := test.count()
			post(t, test.path, test.request)
			require.Equal(t, test.difference, test.count()-before)
			dry := true
			test.request.DryRun = &dry
			post(t, test.path, test.request)
			require.Equal(t, test.difference, test.count()-before, "a dry run does not count")
		})
	}
	before := verdict("Machine", "", "CREATE", "formatValue", warned)
	answer(validate, Warn, request(t, "machines", "", "spec: {host: {provisioningFormat: weird}}"))
	require.Equal(t, 1.0, verdict("Machine", "", "CREATE", "formatValue", warned)-before)

	for _, name := range []string{"hostformat_admission_verdicts_total", "hostformat_admission_trimmed_images_total"} {
		problems, err := testutil.GatherAndLint(metrics.Registry, name)
		require.NoError(t, err)
		require.Empty(t, problems)
	}
}
