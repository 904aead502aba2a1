package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

func TestMutate(t *testing.T) {
	trimmed := func(path string) []string {
		return []string{path + ": surrounding whitespace was removed; correct the manifest"}
	}
	for name, test := range map[string]struct {
		resource, was, now string
		ops                []string
		after              string // YAML; empty: as it was sent
		warn               []string
	}{
		"no spec":            {resource: "machines", now: "{}"},
		"empty spec":         {resource: "machines", now: "spec: {}"},
		"empty host":         {resource: "machines", now: "spec: {host: {}}"},
		"empty template":     {resource: "machineconfigurations", now: "spec: {template: {}}"},
		"clean":              {resource: "machines", now: "spec: {host: {image: acme/os/my image, provisioningFormat: CloudInit}}"},
		"no format is added": {resource: "machines", now: "spec: {host: {image: img-a}}"},
		"dirty": {resource: "machines", now: `spec: {host: {image: " img-a\n", provisioningFormat: CloudInit}}`,
			ops: []string{"replace /spec/host/image"}, after: "spec: {host: {image: img-a, provisioningFormat: CloudInit}}", warn: trimmed("spec.host.image")},
		"only whitespace, siblings stay": {resource: "machines", now: `spec: {host: {image: "  ", provisioningFormat: Ignition}}`,
			ops: []string{"remove /spec/host/image"}, after: "spec: {host: {provisioningFormat: Ignition}}",
			warn: []string{"spec.host.image: held only whitespace and was removed; correct the manifest"}},
		"only whitespace, host stays": {resource: "machines", now: `spec: {host: {image: " "}}`,
			ops: []string{"remove /spec/host/image"}, after: "spec: {host: {}}", warn: []string{"was removed"}},
		"format is never repaired":   {resource: "machines", now: `spec: {host: {provisioningFormat: "Ignition "}}`},
		"other strings are not ours": {resource: "machines", now: `spec: {agent: {image: " x "}, pxe: {image: " x "}, host: {netboot: {image: " x "}}, provider: " x "}`},
		"exact case":                 {resource: "machines", now: `spec: {host: {Image: " x "}, Host: {image: " x "}}`},

		"update: stored so":         {resource: "machines", was: `spec: {host: {image: " img-a "}}`, now: `{metadata: {labels: {a: b}}, spec: {host: {image: " img-a "}}}`},
		"update: other whitespace":  {resource: "machines", was: `spec: {host: {image: " img-a "}}`, now: `spec: {host: {image: " img-a"}}`, ops: []string{"replace /spec/host/image"}, after: "spec: {host: {image: img-a}}", warn: trimmed("spec.host.image")},
		"update: new whitespace":    {resource: "machines", was: "spec: {host: {image: img-a}}", now: `spec: {host: {image: " img-a "}}`, ops: []string{"replace /spec/host/image"}, after: "spec: {host: {image: img-a}}", warn: trimmed("spec.host.image")},
		"update: blank over stored": {resource: "machines", was: "spec: {host: {image: img-a}}", now: `spec: {host: {image: " "}}`, ops: []string{"remove /spec/host/image"}, after: "spec: {host: {}}", warn: []string{"was removed"}},

		"configuration": {resource: "machineconfigurations", now: `spec: {template: {host: {image: " img-t"}, agent: {image: " x "}}, machineSelector: {}}`,
			ops: []string{"replace /spec/template/host/image"}, after: `spec: {template: {host: {image: img-t}, agent: {image: " x "}}, machineSelector: {}}`, warn: trimmed("spec.template.host.image")},
		"version": {resource: "machineconfigurationversions", now: `spec: {version: 3, template: {host: {image: "img-t\u00a0"}}}`,
			ops: []string{"replace /spec/template/host/image"}, after: "spec: {version: 3, template: {host: {image: img-t}}}", warn: trimmed("spec.template.host.image")},

		"operation":              {resource: "machineoperations", now: `{spec: {machineRef: " a "}, status: {targets: [{machineRef: a, input: {hostImage: " img-a "}}]}}`},
		"status: newly set":      {resource: "machineoperations/status", was: "status: {targets: [{machineRef: b}]}", now: `status: {targets: [{machineRef: a, knob: " x "}, {machineRef: b, input: {hostImage: " img-b "}}]}`, ops: []string{"replace /status/targets/1/input/hostImage"}, after: `status: {targets: [{machineRef: a, knob: " x "}, {machineRef: b, input: {hostImage: img-b}}]}`, warn: trimmed("status.targets.1.input.hostImage")},
		"status: blank":          {resource: "machineoperations/status", was: "{}", now: `status: {targets: [{machineRef: a, input: {hostImage: " ", provisioningFormat: CloudInit}}]}`, ops: []string{"remove /status/targets/0/input/hostImage"}, after: "status: {targets: [{machineRef: a, input: {provisioningFormat: CloudInit}}]}", warn: []string{"was removed"}},
		"status: stored so":      {resource: "machineoperations/status", was: `status: {targets: [{machineRef: a, input: {hostImage: " img-a"}}]}`, now: `status: {phase: Failed, targets: [{machineRef: b}, {machineRef: a, input: {hostImage: " img-a"}}]}`},
		"status: frozen clean":   {resource: "machineoperations/status", was: "status: {targets: [{machineRef: a, input: {hostImage: img-a}}]}", now: `status: {targets: [{machineRef: a, input: {hostImage: " img-a"}}]}`, ops: []string{"replace /status/targets/0/input/hostImage"}, after: "status: {targets: [{machineRef: a, input: {hostImage: img-a}}]}", warn: trimmed("status.targets.0.input.hostImage")},
		"status: wrong shapes":   {resource: "machineoperations/status", was: "{}", now: `status: {targets: [x, {machineRef: a, input: {hostImage: [" img-a"]}}, {input: " "}]}`},
		"image of another shape": {resource: "machines", now: "spec: {host: {image: [' x ']}}"},
		"host of another shape":  {resource: "machines", now: "spec: {host: ' x '}"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, test.resource, test.was, test.now)
			after, ops, warnings := mutated(t, r)
			require.Equal(t, test.ops, ops)
			want := r.Object.Raw
			if test.after != "" {
				want = request(t, test.resource, test.was, test.after).Object.Raw
			}
			require.JSONEq(t, string(want), string(after))
			require.Len(t, warnings, len(test.warn))
			for i, words := range test.warn {
				require.Contains(t, warnings[i], words)
				require.Less(t, len(warnings[i]), 256)
			}
			r.Object.Raw = after
			require.Empty(t, operations(t, post(t, MutatePath, r)), "a second pass finds nothing")
		})
	}
}

func TestMutateTrimsEveryWhitespace(t *testing.T) {
	spaces := []string{" ", "\t", "\n", "\r\n", "\v", "\f", "\u0085", "\u00a0", "\u2003", "\u2028", "\u202f", "\u3000", " \t\u00a0\r\n"}
	paths := map[string]string{
		"machines":                     "spec: {host: {image: %q}}",
		"machineconfigurations":        "spec: {template: {host: {image: %q}}}",
		"machineconfigurationversions": "spec: {template: {host: {image: %q}}}",
	}
	for resource, format := range paths {
		for _, space := range spaces {
			after, ops, _ := mutated(t, request(t, resource, "", fmt.Sprintf(format, space+"acme/os/my image"+space)))
			require.Len(t, ops, 1)
			require.Contains(t, ops[0], "replace")
			require.JSONEq(t, string(request(t, resource, "", fmt.Sprintf(format, "acme/os/my image")).Object.Raw), string(after), "%q", space)

			_, ops, _ = mutated(t, request(t, resource, "", fmt.Sprintf(format, space)))
			require.Len(t, ops, 1)
			require.Contains(t, ops[0], "remove", "%q", space)
		}
	}
}

// Nested unknown fields, big integers, unusual timestamps, zero values and ownership
// records are not changed.
const fieldsOfOthers = `{"apiVersion":"unbounded-cloud.io/v1alpha3","kind":"Machine",
 "metadata":{"name":"rack7-node-a","creationTimestamp":null,"labels":{"a/b":"~"},"ownerReferences":[{"uid":"u","blockOwnerDeletion":null}],
  "managedFields":[{"manager":"git-a","fieldsType":"FieldsV9","fieldsV9":{"f:x":{}}},{"manager":"git-b","time":"yesterday","extra":0}]},
 "spec":{"host":{"image":" x ","futureKnob":{"depth":2,"list":[{"k":null},{}]}},
  "netboot":{"profiles":[{"name":"p1","hints":["a",""," b "]}]},
  "inventory":{"serial":9007199254740993,"bytes":9223372036854775500,"ratio":1.50,"exp":1e3},
  "kubernetes":{"bootstrapTokenRef":{"name":"t"},"nodeLabels":{}},"installedAt":"2024-02-30T25:61:00.123456789+99:00","empty":"","none":null,"off":false,"zero":0},
 "status":{"conditions":[{"lastTransitionTime":"not a time"}],"phase":""}}`

func TestMutateTouchesNothingElse(t *testing.T) {
	r := request(t, "machines", "", "{}")
	r.Object.Raw = []byte(fieldsOfOthers)
	after, ops, _ := mutated(t, r)
	require.Equal(t, []string{"replace /spec/host/image"}, ops)
	require.Equal(t, digits(t, strings.Replace(fieldsOfOthers, `" x "`, `"x"`, 1)), digits(t, string(after)))

	// The validating handler does not read them either.
	r.Object.Raw = after
	r.OldObject.Raw, r.Operation = []byte(fieldsOfOthers), admissionv1.Update
	require.True(t, post(t, ValidatePath, r).Allowed)
}

// digits decodes JSON without changing how a number was written.
func digits(t *testing.T, text string) any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	require.NoError(t, decoder.Decode(&value))
	return value
}

// If a key occurs twice, the last one counts, as on the API server.
func TestDuplicateKeys(t *testing.T) {
	r := request(t, "machines", "", "{}")
	r.Object.Raw = []byte(`{"spec":{"host":{"image":" a ","image":"b"}}}`)
	require.Empty(t, operations(t, post(t, MutatePath, r)))
	r.Object.Raw = []byte(`{"spec":{"host":{"image":"a","image":" b ","provisioningFormat":"Ignition","provisioningFormat":"weird"}}}`)
	require.Len(t, operations(t, post(t, MutatePath, r)), 1)
	requireCauses(t, "machines", post(t, ValidatePath, r), []cause{{notSupported, "spec.host.provisioningFormat", "weird"}})
}

func TestMutateBoundsItsWarnings(t *testing.T) {
	var targets []string
	for i := range 30 {
		targets = append(targets, fmt.Sprintf(`{machineRef: worker-%d, input: {hostImage: " x "}}`, i))
	}
	_, ops, warnings := mutated(t, request(t, "machineoperations/status", "{}", status(strings.Join(targets, ", "))))
	require.Len(t, ops, 30)
	require.Len(t, warnings, 9)
	require.Equal(t, "surrounding whitespace was removed from 22 more images", warnings[8])
}

// For any object, a patch holds image paths only, the other fields do not change, a
// second mutation changes nothing, and no image keeps surrounding whitespace.
func FuzzMutate(f *testing.F) {
	f.Add(uint8(0), []byte(fieldsOfOthers), []byte(`{}`))
	f.Add(uint8(1), []byte(`{"spec":{"template":{"host":{"image":"\u00a0","x":[1,{}]}}}}`), []byte(`{"spec":{}}`))
	f.Add(uint8(3), []byte(`{"status":{"targets":[{"machineRef":"a","input":{"hostImage":" x","k":1.5}},null,3]}}`), []byte(`{"status":{"targets":[{"machineRef":"a","input":{"hostImage":"x"}}]}}`))
	resources := []string{"machines", "machineconfigurations", "machineconfigurationversions", "machineoperations/status"}
	f.Fuzz(func(t *testing.T, pick uint8, now, was []byte) {
		var value map[string]any
		if kjson.Unmarshal(now, &value) != nil || value == nil || kjson.Unmarshal(was, &map[string]any{}) != nil {
			t.Skip("not an object")
		}
		resource := resources[int(pick)%len(resources)]
		r := request(t, resource, "{}", "{}")
		r.Object.Raw, r.OldObject.Raw = now, was
		before, ops, _ := mutated(t, r)
		for _, op := range ops {
			require.Regexp(t, `^(replace|remove) (/spec/host/image|/spec/template/host/image|/status/targets/\d+/input/hostImage)$`, op)
		}
		r.Object.Raw = before
		require.Empty(t, operations(t, post(t, MutatePath, r)))

		var after map[string]any
		require.NoError(t, kjson.Unmarshal(before, &after))
		for _, op := range ops {
			segments := strings.Split(op[strings.Index(op, "/")+1:], "/")
			sent, _ := take(value, segments).(string)
			kept, _ := take(after, segments).(string)
			require.Equal(t, strings.TrimFunc(sent, unicode.IsSpace), kept)
		}
		require.Equal(t, value, after)
	})
}

// take removes a leaf from a document and returns it.
func take(document any, path []string) any {
	for _, segment := range path[:len(path)-1] {
		switch parent := document.(type) {
		case map[string]any:
			document = parent[segment]
		case []any:
			var i int
			_, _ = fmt.Sscan(segment, &i)
			document = parent[i]
		}
	}
	parent, _ := document.(map[string]any)
	leaf := parent[path[len(path)-1]]
	delete(parent, path[len(path)-1])
	return leaf
}
