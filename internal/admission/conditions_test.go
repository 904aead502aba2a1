package admission

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// oldestAPIServer is the first version whose API server honours matchConditions
// without a feature gate. The expressions have to compile there.
const oldestAPIServer = "1.30"

// condition holds the match conditions that decide whether the API server sends a
// request to one direction of the webhook.
type condition struct {
	evaluator cel.ConditionEvaluator
	count     int
}

// conditions holds the conditions of manifests/base/webhook.yaml, compiled as the
// API server compiles them, by path and resource ("machineoperations/status").
var conditions = sync.OnceValues(func() (map[string]map[string]condition, error) {
	text, err := os.ReadFile("../../manifests/base/webhook.yaml")
	if err != nil {
		return nil, err
	}
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(utilversion.MustParseGeneric(oldestAPIServer)))
	found := map[string]map[string]condition{MutatePath: {}, ValidatePath: {}}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		// The mutating configuration has the same fields.
		var configuration admissionregistrationv1.ValidatingWebhookConfiguration
		if err := yaml.Unmarshal(document, &configuration); err != nil {
			return nil, err
		}
		for _, hook := range configuration.Webhooks {
			var expressions []cel.ExpressionAccessor
			for _, c := range hook.MatchConditions {
				expressions = append(expressions, new(matchconditions.MatchCondition(c)))
			}
			evaluator := compiler.CompileCondition(expressions, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions)
			if errs := evaluator.CompilationErrors(); len(errs) > 0 {
				return nil, fmt.Errorf("%s: %v", hook.Name, errs)
			}
			found[*hook.ClientConfig.Service.Path][hook.Rules[0].Resources[0]] = condition{evaluator, len(expressions)}
		}
	}
	return found, nil
})

// evaluate reports whether the API server would send a request to the webhook, and
// the cost of its conditions in the unit of the API server's budget. ours is false
// for a review that the API server never makes.
func evaluate(t testing.TB, path string, r *admissionv1.AdmissionRequest) (sent bool, cost int64, ours bool) {
	t.Helper()
	ask := asked(t, path, r)
	if ask == nil {
		return true, 0, false
	}
	sent, cost = ask()
	return sent, cost, true
}

// asked returns the function that evaluates the conditions. It is nil for a review
// that the API server never makes.
func asked(t testing.TB, path string, r *admissionv1.AdmissionRequest) func() (sent bool, cost int64) {
	t.Helper()
	all, err := conditions()
	require.NoError(t, err)
	c, ours := all[path][resource(r)]
	was, now, ok := asStored(r)
	if _, guarded := guards[r.Kind]; !guarded || !ours || !ok {
		return nil
	}
	attributes := admission.NewAttributesRecord(now, was, schema.GroupVersionKind(r.Kind), "", r.Name, schema.GroupVersionResource(r.Resource), r.SubResource, admission.Operation(r.Operation), nil, false, nil)
	return func() (bool, int64) {
		versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: schema.GroupVersionKind(r.Kind),
			VersionedObject: admission.NewLazyObject(now), VersionedOldObject: admission.NewLazyObject(was)}
		results, left, err := c.evaluator.ForInput(t.Context(), versioned, r, cel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudgetMatchConditions)
		require.NoError(t, err)
		require.Len(t, results, c.count)
		sent := true
		for _, result := range results {
			require.NoError(t, result.Error, "%s\nwas %s\nnow %s", resource(r), r.OldObject.Raw, r.Object.Raw)
			sent = sent && result.EvalResult.Value() == true
		}
		return sent, celconfig.RuntimeCELCostBudgetMatchConditions - left
	}
}

func resource(r *admissionv1.AdmissionRequest) string {
	return strings.TrimSuffix(r.Resource.Resource+"/"+r.SubResource, "/")
}

// asStored returns the two objects of a review as the API server has them when it
// evaluates the conditions. On a create, was is nil.
func asStored(r *admissionv1.AdmissionRequest) (was, now runtime.Object, ok bool) {
	after, ok := decoded(r.Object.Raw)
	if !ok || (r.Operation == admissionv1.Update) != (r.OldObject.Raw != nil) {
		return nil, nil, false
	}
	after.SetGeneration(1)
	if r.OldObject.Raw == nil {
		return nil, after, true
	}
	before, ok := decoded(r.OldObject.Raw)
	if !ok {
		return nil, nil, false
	}
	before.SetGeneration(1)
	if !equality.Semantic.DeepEqual(before.Object["spec"], after.Object["spec"]) {
		after.SetGeneration(2)
	}
	return before, after, true
}

func decoded(raw []byte) (*unstructured.Unstructured, bool) {
	u := &unstructured.Unstructured{}
	if json.Unmarshal(raw, &u.Object) != nil || u.Object == nil {
		return nil, false
	}
	if _, isMap := u.Object["metadata"].(map[string]any); !isMap {
		u.Object["metadata"] = map[string]any{}
	}
	return u, true
}

// requireSent fails if the webhook denies, patches or warns about a request that the
// API server would not have sent. Every review of these tests is checked.
func requireSent(t testing.TB, path string, r *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse) {
	t.Helper()
	silent := response.Allowed && response.Patch == nil && len(response.Warnings) == 0
	if sent, _, ours := evaluate(t, path, r); ours && !silent {
		require.True(t, sent, "the API server would not have asked %s\nwas %s\nnow %s\n%v %v", path, r.OldObject.Raw, r.Object.Raw, response.Result, response.Warnings)
	}
}

// Frequent requests are not sent to the webhook.
func TestConditionsSkip(t *testing.T) {
	const (
		started = "{spec: {operationKind: HostReplace, machineRef: worker-1}, " + frozenTarget + "}"
		status  = "machineoperations/status"
	)
	for name, test := range map[string]struct{ resource, was, now string }{
		"a Machine without a host":     {"machines", "", "spec: {}"},
		"an empty Machine":             {"machines", "", "{}"},
		"a declared image":             {"machines", "", "spec: {host: {image: 'r.example.com/a/b:1@sha256:0f', provisioningFormat: Ignition}}"},
		"an image alone":               {"machines", "", "spec: {host: {image: a}}"},
		"an image on a CloudInit host": {"machines", "{spec: {}, status: {observedProvisioningFormat: CloudInit}}", "spec: {host: {image: a}}"},
		"a declared image on an Ignition host": {"machines", "{spec: {}, status: {observedProvisioningFormat: Ignition}}",
			"spec: {host: {image: a, provisioningFormat: CloudInit}}"},
		"no image on an Ignition host": {"machines", "{spec: {}, status: {observedProvisioningFormat: Ignition}}", "spec: {host: {}}"},
		"an image edit":                {"machines", "spec: {host: {image: a}}", "spec: {host: {image: b}}"},
		"a label edit": {"machines", "spec: {host: {image: a, provisioningFormat: CloudInit}}",
			"{metadata: {name: rack7-node-a, labels: {a: b}}, spec: {host: {image: a, provisioningFormat: CloudInit}}}"},
		"a neighbour's fields":        {"machines", "", "spec: {pxe: {image: ' a'}, providerRef: {name: b}, image: 7}"},
		"a configuration":             {"machineconfigurations", "", "spec: {template: {host: {image: a, provisioningFormat: CloudInit}}}"},
		"a configuration, no host":    {"machineconfigurations", "", "spec: {priority: 5}"},
		"a version":                   {"machineconfigurationversions", "", "spec: {version: 1, template: {host: {image: a}}}"},
		"a declared version":          {"machineconfigurationversions", "", "spec: {template: {host: {image: a, provisioningFormat: Ignition}}}"},
		"a version that is deployed":  {"machineconfigurationversions", "{spec: {version: 1}, status: {deployed: true}}", "{metadata: {name: a, labels: {a: b}}, spec: {version: 1}}"},
		"a version before deployment": {"machineconfigurationversions", "spec: {version: 1}", "spec: {version: 2}"},
		"a replacement":               {"machineoperations", "", "spec: {operationKind: HostReplace, machineRef: worker-1}"},
		"a selected rack":             {"machineoperations", "", "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '7'}}}"},
		"selected by an expression":   {"machineoperations", "", "spec: {operationKind: HostReplace, machineSelector: {matchExpressions: [{key: rack, operator: Exists}]}}"},
		"a reboot of all":             {"machineoperations", "", "spec: {operationKind: HostReboot, machineSelector: {}}"},
		"an edit before the start":    {"machineoperations", "{spec: {operationKind: HostReplace, machineRef: worker-1}, status: {message: m, targets: []}}", "spec: {operationKind: HostReplace, machineRef: worker-2}"},
		"a pause of a started one": {"machineoperations", started,
			"{metadata: {name: a, generation: 2}, spec: {operationKind: HostReplace, machineRef: worker-1, parameters: {pause: 'true'}}, " + frozenTarget + "}"},
		"a finalizer on a started one": {"machineoperations", started,
			"{metadata: {name: a, finalizers: [example.com/a]}, spec: {operationKind: HostReplace, machineRef: worker-1}, " + frozenTarget + "}"},
		"a finalizer on a reboot": {"machineoperations", "{spec: {operationKind: HostReboot, machineRef: worker-1}, status: {phase: InProgress}}",
			"{metadata: {name: a, finalizers: [example.com/a]}, spec: {operationKind: HostReboot, machineRef: worker-1}, status: {phase: InProgress}}"},
		"a step of the controller": {status, progress("Pending", "Pending", 0), progress("InProgress", "InProgress", 1)},
		"the last step":            {status, progress("InProgress", "InProgress", 1), progress("Complete", "Complete", 1)},
		"a failure":                {status, progress("Pending", "Pending", 0), progress("Failed", "Failed", 0)},
		"a message at the end":     {status, progress("Complete", "InProgress", 1), progress("Complete", "Complete", 1)},
		"a reboot without targets": {status, "{spec: {operationKind: HostReboot}, status: {phase: Pending}}", "{spec: {operationKind: HostReboot}, status: {phase: Complete, message: m}}"},
		"a phase": {status, frozenTarget,
			"status: {phase: InProgress, targets: [{machineRef: worker-1, phase: InProgress, attempts: 2, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}"},
		"a status without targets": {status, "{}", "status: {phase: Pending}"},
		"no status at all":         {status, "{}", "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{MutatePath, ValidatePath} {
				if path == MutatePath && test.resource == "machineoperations" {
					continue // nothing there is trimmed
				}
				sent, _, ours := evaluate(t, path, request(t, test.resource, test.was, test.now))
				require.True(t, ours)
				require.False(t, sent, path)
			}
		})
	}
}

// progress is a HostReplace whose targets are frozen, as the controller writes it.
func progress(phase, target string, attempts int) string {
	return fmt.Sprintf("{spec: {operationKind: HostReplace, machineRef: worker-1}, status: {phase: %[1]s, message: at %[2]s, conditions: [{type: Frozen, status: 'True'}, {type: Complete, status: 'False', reason: %[2]s}],"+
		" targets: [{machineRef: worker-1, phase: %[2]s, stage: %[2]s, message: m, attempts: %[3]d, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}}", phase, target, attempts)
}

// JSON of any type in a judged field, stored or new, causes no error in a condition,
// and the request is sent if the webhook denies it, patches it or warns about it.
func TestConditionsOnWrongShapes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	const (
		host      = "{image: a, provisioningFormat: CloudInit}"
		operation = "{spec: {operationKind: HostReplace, machineRef: worker-1, machineSelector: {matchExpressions: [{key: a, operator: Exists}]}}, status: {phase: Complete, conditions: [{type: Frozen, status: 'True'}], targets: [{machineRef: worker-1, input: {hostImage: a, provisioningFormat: CloudInit}}]}}"
	)
	template := []string{"spec", "template", "host"}
	for resource, whole := range map[string]struct {
		object string
		paths  [][]string
	}{
		"machines": {"{spec: {host: " + host + "}, status: {observedProvisioningFormat: Ignition}}", [][]string{
			{"spec", "host", "image"}, {"spec", "host", "provisioningFormat"}, {"status", "observedProvisioningFormat"}}},
		"machineconfigurations": {"{spec: {template: {host: " + host + "}}}", [][]string{
			append(template, "image"), append(template[:3:3], "provisioningFormat")}},
		"machineconfigurationversions": {"{spec: {template: {host: " + host + "}}, status: {deployed: true}}", [][]string{
			append(template, "image"), append(template[:3:3], "provisioningFormat"), {"status", "deployed"}}},
		"machineoperations": {operation, [][]string{
			{"spec", "operationKind"}, {"spec", "machineRef"}, {"spec", "machineSelector", "matchLabels"}, {"spec", "machineSelector", "matchExpressions"}, {"spec", "machineSelector", "matchExpressions", "0", "key"}, {"status", "targets"}, {"status", "phase"}}},
		"machineoperations/status": {operation, [][]string{
			{"status", "phase"}, {"spec", "operationKind"}, {"status", "conditions", "0", "type"}, {"status", "conditions", "0", "status"},
			{"status", "targets", "0", "machineRef"}, {"status", "targets", "0", "input", "hostImage"}, {"status", "targets", "0", "input", "provisioningFormat"}}},
	} {
		t.Run(resource, func(t *testing.T) {
			seen := map[string]bool{}
			for _, path := range whole.paths {
				for depth := 1; depth <= len(path); depth++ {
					at := strings.Join(path[:depth], ".")
					if seen[at] {
						continue
					}
					seen[at] = true
					objects := []string{whole.object, "{}", "spec: {host: {image: a}}"}
					for _, value := range []any{nil, true, int64(7), "", "x", " x ", []any{}, []any{"x"}, []any{map[string]any{}}, map[string]any{}, map[string]any{"x": "y"}} {
						objects = append(objects, withValue(t, whole.object, value, path[:depth]))
					}
					for _, was := range objects {
						for _, now := range objects {
							r := request(t, resource, was, now)
							post(t, ValidatePath, r)
							post(t, MutatePath, r)
							if r.SubResource == "" {
								post(t, ValidatePath, request(t, resource, "", now))
							}
						}
					}
				}
			}
		})
	}
}

// withValue sets a value in an object, given as YAML.
func withValue(t *testing.T, object string, value any, path []string) string {
	t.Helper()
	var parsed any
	require.NoError(t, yaml.Unmarshal([]byte(object), &parsed))
	parent := parsed
	for _, key := range path[:len(path)-1] {
		parent = child(parent, key)
	}
	if list, ok := parent.([]any); ok {
		list[0] = value
	} else {
		parent.(map[string]any)[path[len(path)-1]] = value
	}
	text, err := yaml.Marshal(parsed)
	require.NoError(t, err)
	return string(text)
}

func child(parent any, key string) any {
	if list, ok := parent.([]any); ok {
		return list[0]
	}
	return parent.(map[string]any)[key]
}

// If a condition exceeds the API server's cost budget, the API server refuses every
// status update of the operation. For the largest operations that a request can hold,
// the conditions stay within the budget: what is too large for them is sent to the
// webhook.
func TestConditionsCost(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	const request3MiB = 3 << 20 // the largest request that the API server reads
	var wide []string           // as many fields as each of 6000 targets can have
	for i := range 46 {
		wide = append(wide, fmt.Sprintf(`"%d":{}`, i))
	}
	for name, test := range map[string]struct {
		targets int
		target  string
		sent    bool
	}{
		"as many targets as the CRD allows": {6000, `{"machineRef":"rack-%d","input":{"hostImage":"r.example.com/os@sha256:0123456789abcdef0123456789abcdef","provisioningFormat":"CloudInit","imageSource":"Machine"}}`, false},
		"as many as fit elsewhere":          {request3MiB / 25, `{"machineRef":"%d"}`, true},
		"the longest images":                {request3MiB / 2100, `{"machineRef":"%d","input":{"hostImage":"` + strings.Repeat("a", 2048) + `"}}`, false},
		"one image":                         {1, `{"machineRef":"%d","input":{"hostImage":"` + strings.Repeat("a", request3MiB-200) + `"}}`, false},
		"wide targets":                      {6000, `{"machineRef":"%d","input":{` + strings.Join(wide, ",") + `}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			var list []string
			for i := range test.targets {
				list = append(list, fmt.Sprintf(test.target, i))
			}
			raw := []byte(`{"spec":{"operationKind":"HostReplace"},"status":{"phase":"Complete","targets":[` + strings.Join(list, ",") + `]}}`)
			require.Less(t, len(raw), request3MiB)
			r := request(t, "machineoperations/status", "{}", "{}")
			r.Object.Raw, r.OldObject.Raw = raw, raw
			for _, path := range []string{MutatePath, ValidatePath} {
				sent, cost, _ := evaluate(t, path, r)
				require.Equal(t, test.sent, sent, path)
				require.Less(t, cost, int64(celconfig.PerCallLimit), path)
			}
		})
	}
	// A status that shrinks from a size beyond the limit stays within the budget, too.
	r := request(t, "machineoperations/status", "{}", frozenTarget)
	r.OldObject.Raw = []byte(`{"status":{"targets":[` + strings.Repeat(`{},`, request3MiB/3) + `{}]}}`)
	sent, cost, _ := evaluate(t, ValidatePath, r)
	require.True(t, sent)
	require.Less(t, cost, int64(1000))
	for _, resource := range []string{"machines", "machineconfigurations", "machineconfigurationversions", "machineoperations"} {
		r := request(t, resource, "", "spec: {host: {image: "+strings.Repeat("a", request3MiB)+"}}")
		_, cost, _ := evaluate(t, ValidatePath, r)
		require.Less(t, cost, int64(celconfig.PerCallLimit))
	}
}
