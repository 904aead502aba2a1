package admission

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
)

func TestValidateOperation(t *testing.T) {
	fleet := []cause{{required, "spec.machineSelector", "must select by at least one label because an empty selector would replace every host of the fleet"}}
	runRows(t, "machineoperations", map[string]row{
		"by name":                     {now: "spec: {operationKind: HostReplace, machineRef: worker-1}"},
		"by label":                    {now: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '7'}}}"},
		"by expression":               {now: "spec: {operationKind: HostReplace, machineSelector: {matchExpressions: [{key: rack, operator: Exists}]}}"},
		"null selector":               {now: "spec: {operationKind: HostReplace, machineRef: worker-1, machineSelector: null}"},
		"the whole fleet":             {now: "spec: {operationKind: HostReplace, machineSelector: {}}", want: fleet},
		"the whole fleet, with lists": {now: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {}, matchExpressions: []}}", want: fleet},
		"the whole fleet, on update":  {was: "spec: {operationKind: HostReplace, machineRef: worker-1}", now: "spec: {operationKind: HostReplace, machineSelector: {}}", want: fleet},
		"the whole fleet, by kind":    {was: "spec: {operationKind: HostReboot, machineSelector: {}}", now: "spec: {operationKind: HostReplace, machineSelector: {}}", want: fleet},
		"the whole fleet, stored":     {was: "spec: {operationKind: HostReplace, machineSelector: {}}", now: "{metadata: {labels: {a: b}}, spec: {operationKind: HostReplace, machineSelector: {}}}"},
		"another kind may":            {now: "spec: {operationKind: HostReboot, machineSelector: {}}"},
		"selector of the wrong shape": {now: "spec: {operationKind: HostReplace, machineSelector: all}", want: []cause{{typeInvalid, "spec.machineSelector", `"all": must be an object`}}},
		"kind of the wrong shape":     {now: "spec: {operationKind: 1}", want: []cause{{typeInvalid, "spec.operationKind", "1: must be a string"}}},
		"ref of the wrong shape":      {now: "spec: {operationKind: HostReplace, machineRef: [a]}", want: []cause{{typeInvalid, "spec.machineRef", `["a"]: must be a string`}}},
		"spec of the wrong shape":     {now: "spec: []", want: []cause{{typeInvalid, "spec", "[]: must be an object"}}},
		"a typed status is dropped":   {now: "{spec: {operationKind: HostReplace, machineRef: a}, status: {targets: [{machineRef: a, input: {provisioningFormat: weird}}]}}"},
	})
}

func TestValidateOperationKeepsWhatIsFrozen(t *testing.T) {
	const frozenStatus = "status: {targets: [{machineRef: worker-0}, {machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}"
	frozen := "{spec: {operationKind: HostReplace, machineRef: worker-1}, " + frozenStatus + "}"
	selected := "{spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '7'}}}, " + frozenStatus + "}"
	const words = "may not change because the image and format for Machine worker-1 are frozen (status.targets); create a new MachineOperation instead"
	runRows(t, "machineoperations", map[string]row{
		"labelled":     {was: frozen, now: "{metadata: {labels: {a: b}}, spec: {operationKind: HostReplace, machineRef: worker-1}}"},
		"free fields":  {was: frozen, now: "spec: {operationKind: HostReplace, machineRef: worker-1, ttlSecondsAfterFinished: 60, parameters: {a: b}}"},
		"kind":         {was: frozen, now: "spec: {operationKind: HostReboot, machineRef: worker-1}", want: []cause{{forbidden, "spec.operationKind", words}}},
		"machine":      {was: frozen, now: "spec: {operationKind: HostReplace, machineRef: worker-2}", want: []cause{{forbidden, "spec.machineRef", words}}},
		"machine gone": {was: frozen, now: "spec: {operationKind: HostReplace}", want: []cause{{forbidden, "spec.machineRef", words}}},
		"selector added": {was: frozen, now: "spec: {operationKind: HostReplace, machineRef: worker-1, machineSelector: {matchLabels: {a: b}}}",
			want: []cause{{forbidden, "spec.machineSelector", words}}},
		"selector changed": {was: selected, now: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '8'}}}",
			want: []cause{{forbidden, "spec.machineSelector", words}}},
		"all at once": {was: frozen, now: "spec: {operationKind: HostReboot, machineSelector: {matchLabels: {a: b}}}",
			want: []cause{{forbidden, "spec.operationKind", words}, {forbidden, "spec.machineRef", words}, {forbidden, "spec.machineSelector", words}}},
		"spec gone": {was: frozen, now: "{}", want: []cause{{forbidden, "spec.operationKind", words}, {forbidden, "spec.machineRef", words}}},
		"in the wrong shape": {was: frozen, now: "spec: {operationKind: HostReplace, machineRef: [worker-1]}",
			want: []cause{{typeInvalid, "spec.machineRef", "must be a string"}, {forbidden, "spec.machineRef", words}}},
		"while being deleted": {was: frozen, now: "{metadata: {deletionTimestamp: now}, spec: {operationKind: HostReplace, machineRef: worker-2}}",
			want: []cause{{forbidden, "spec.machineRef", words}}},
		"a kept image is frozen too": {
			was:  "{spec: {operationKind: HostReplace, machineRef: worker-1}, status: {targets: [{machineRef: worker-1, input: {provisioningFormat: CloudInit}}]}}",
			now:  "spec: {operationKind: HostReplace, machineRef: worker-2}",
			want: []cause{{forbidden, "spec.machineRef", words}}},
		"a legacy snapshot is not": {
			was: "{spec: {operationKind: HostReplace, machineRef: worker-1}, status: {targets: [{machineRef: worker-1, input: {hostImage: img-a}}]}}",
			now: "spec: {operationKind: HostReplace, machineRef: worker-2}"},
	})
}

func status(targets string) string { return "status: {targets: [" + targets + "]}" }

func TestValidateOperationStatus(t *testing.T) {
	const (
		pair   = "{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: CloudInit}}"
		kept   = "{machineRef: worker-1, input: {provisioningFormat: CloudInit}}"
		legacy = "{machineRef: worker-1, input: {hostImage: img-a}}"
		bare   = "{machineRef: worker-1}"

		target = "status.targets[worker-1]"
		image  = "status.targets[worker-1].input.hostImage"
		format = "status.targets[worker-1].input.provisioningFormat"

		imageGone  = `may not be removed because "img-a" is frozen; a client that rewrites the status must keep it`
		formatGone = "may not be removed because CloudInit is frozen with the image; the client that sent this is older than the field: upgrade it"
		targetGone = "may not be removed because its image and format are frozen"
	)
	was := status(pair)
	gone := []cause{{required, target, targetGone}}
	bothGone := []cause{{required, format, formatGone}, {required, image, imageGone}}
	rows := map[string]row{
		"set at once":               {was: "status: {}", now: was},
		"set on a target":           {was: status(bare), now: was},
		"set on an empty input":     {was: status("{machineRef: worker-1, input: {}}"), now: was},
		"untouched":                 {was: was, now: was},
		"every other field is free": {was: was, now: "status: {phase: Failed, message: m, knob: 1, targets: [{machineRef: worker-1, phase: Failed, stage: s, message: m, attempts: 3, knob: {a: 1}, providerOperation: {provider: p, operationID: o}, input: {hostImage: img-a, provisioningFormat: CloudInit, providerRef: {name: n}, machineUID: u}}]}"},
		"whitespace is no change":   {was: was, now: status(`{machineRef: worker-1, input: {hostImage: " img-a", provisioningFormat: CloudInit}}`)},
		"a target is added":         {was: was, now: status(pair + ", {machineRef: worker-0, input: {hostImage: img-b, provisioningFormat: Ignition}}")},
		"an unfrozen target goes":   {was: status(pair + ", {machineRef: worker-2, input: {}}"), now: was},

		"image changed":  {was: was, now: status("{machineRef: worker-1, input: {hostImage: img-b, provisioningFormat: CloudInit}}"), want: []cause{{invalid, image, `"img-b": may not change because "img-a" is frozen; create a new MachineOperation`}}},
		"image as list":  {was: was, now: status("{machineRef: worker-1, input: {hostImage: [img-a], provisioningFormat: CloudInit}}"), want: []cause{{invalid, image, `["img-a"]: may not change`}}},
		"format changed": {was: was, now: status("{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: Ignition}}"), want: []cause{{invalid, format, `"Ignition": may not change because CloudInit is frozen with the image`}}},
		"format as list": {was: was, now: status("{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: [CloudInit]}}"), want: []cause{{invalid, format, `["CloudInit"]: may not change`}}},
		"both changed": {was: was, now: status("{machineRef: worker-1, input: {hostImage: img-b, provisioningFormat: Ignition}}"),
			want: []cause{{invalid, format, "may not change"}, {invalid, image, "may not change"}}},

		"image absent":             {was: was, now: status(kept), want: []cause{{required, image, imageGone}}},
		"image null":               {was: was, now: status("{machineRef: worker-1, input: {hostImage: null, provisioningFormat: CloudInit}}"), want: []cause{{required, image, imageGone}}},
		"image empty":              {was: was, now: status(`{machineRef: worker-1, input: {hostImage: "", provisioningFormat: CloudInit}}`), want: []cause{{required, image, imageGone}}},
		"image blank":              {was: was, now: status(`{machineRef: worker-1, input: {hostImage: " ", provisioningFormat: CloudInit}}`), want: []cause{{required, image, imageGone}}},
		"format absent":            {was: was, now: status(legacy), want: []cause{{required, format, formatGone}}},
		"format null":              {was: was, now: status("{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: null}}"), want: []cause{{required, format, formatGone}}},
		"format empty":             {was: was, now: status(`{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: ""}}`), want: []cause{{required, format, formatGone}}},
		"input absent":             {was: was, now: status(bare), want: bothGone},
		"input null":               {was: was, now: status("{machineRef: worker-1, input: null}"), want: bothGone},
		"input empty":              {was: was, now: status("{machineRef: worker-1, input: {}}"), want: bothGone},
		"input as a string":        {was: was, now: status("{machineRef: worker-1, input: x}"), want: append([]cause{{typeInvalid, "status.targets[worker-1].input", `"x": must be an object`}}, bothGone...)},
		"target gone":              {was: was, now: status("{machineRef: worker-2}"), want: gone},
		"target as a string":       {was: was, now: status("x"), want: append([]cause{{typeInvalid, "status.targets[0]", `"x": must be an object`}}, gone...)},
		"list empty":               {was: was, now: status(""), want: gone},
		"list null":                {was: was, now: "status: {targets: null}", want: gone},
		"list absent":              {was: was, now: "status: {phase: Failed}", want: gone},
		"list as an object":        {was: was, now: "status: {targets: {worker-1: x}}", want: append([]cause{{typeInvalid, "status.targets", `{"worker-1":"x"}: must be a list`}}, gone...)},
		"status absent":            {was: was, now: "{}", want: gone},
		"status as a string":       {was: was, now: "status: x", want: append([]cause{{typeInvalid, "status", `"x": must be an object`}}, gone...)},
		"under another key":        {was: was, now: status("{machineRef: worker-9, input: {hostImage: img-a, provisioningFormat: CloudInit}}"), want: gone},
		"under a key as number":    {was: was, now: status("{machineRef: 1, input: {hostImage: img-a, provisioningFormat: CloudInit}}"), want: append([]cause{{typeInvalid, "status.targets[0].machineRef", "1: must be a string"}}, gone...)},
		"a duplicate":              {was: was, now: status(pair + ", " + pair), want: []cause{{duplicate, "status.targets[1].machineRef", `"worker-1": may be the target of one entry only`}}},
		"a duplicate, of a new":    {was: "status: {}", now: status(bare + ", " + bare), want: []cause{{duplicate, "status.targets[1].machineRef", `"worker-1"`}}},
		"stored duplicates":        {was: status(pair + ", " + pair), now: status(pair + ", " + pair)},
		"a stored duplicate goes":  {was: status(pair + ", " + bare), now: status(pair)},
		"a stored duplicate gains": {was: status(pair + ", " + bare), now: status(pair + ", " + pair)},
		"two without a Machine":    {was: "status: {}", now: status("{}, {}"), want: []cause{{duplicate, "status.targets[1].machineRef", `""`}}},
		"a frozen duplicate goes":  {was: status(pair + ", " + pair), now: status(pair), want: gone},

		"a kept image stays kept":    {was: status(kept), now: was, want: []cause{{invalid, image, `"img-a": must stay empty because the pair is frozen to keep the current image`}}},
		"a kept image may be blank":  {was: status(kept), now: status(`{machineRef: worker-1, input: {hostImage: "", provisioningFormat: CloudInit}}`)},
		"a kept image's target goes": {was: status(kept), now: "status: {}", want: gone},
		"a kept image's format":      {was: status(kept), now: status("{machineRef: worker-1, input: {}}"), want: []cause{{required, format, formatGone}}},

		"a legacy snapshot gains its format": {was: status(legacy), now: was},
		"a legacy snapshot gains a bad one":  {was: status(legacy), now: status("{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: cloud-init}}"), want: []cause{{notSupported, format, `did you mean "CloudInit"?`}}},
		"a legacy snapshot's image":          {was: status(legacy), now: status("{machineRef: worker-1, input: {hostImage: img-b}}"), want: []cause{{invalid, image, "may not change"}}},
		"a legacy snapshot's image goes":     {was: status(legacy), now: status(bare), want: []cause{{required, image, imageGone}}},
		"a legacy snapshot goes":             {was: status(legacy), now: "status: {}", want: gone},
		"a blank image was never set":        {was: status(`{machineRef: worker-1, input: {hostImage: " "}}`), now: was},

		"newly set format": {was: "status: {}", now: status("{machineRef: worker-1, input: {provisioningFormat: 5}}"), want: []cause{{notSupported, format, "5: supported values"}}},
		"newly set image": {was: "status: {}", now: status(`{machineRef: worker-1, input: {hostImage: "a\u200bb", provisioningFormat: CloudInit}}`),
			want: []cause{{invalid, image, "U+200B"}}},
		"newly set image, as number": {was: "status: {}", now: status("{machineRef: worker-1, input: {hostImage: 5}}"), want: []cause{{typeInvalid, image, "5: must be a string"}}},
		"newly set image, too long": {was: "status: {}", now: status("{machineRef: worker-1, input: {hostImage: " + strings.Repeat("x", 2049) + "}}"),
			want: []cause{{tooLong, image, "and has 2049"}}},
		"stored bad format": {was: status("{machineRef: worker-1, input: {provisioningFormat: weird}}"), now: status("{machineRef: worker-1, phase: Failed, input: {provisioningFormat: weird}}")},
		"stored bad image":  {was: status(`{machineRef: worker-1, input: {hostImage: "a\u200bb"}}`), now: status(`{machineRef: worker-1, phase: Failed, input: {hostImage: "a\u200bb"}}`)},

		"being deleted is no excuse": {was: was, now: "{metadata: {deletionTimestamp: now}, status: {}}", want: gone},
		"finished is no excuse":      {was: "status: {phase: Complete, targets: [" + pair + "]}", now: "status: {phase: Complete}", want: gone},
	}
	runRows(t, "machineoperations/status", rows)
}

// Order is no change; a pair under another key is two.
func TestValidateOperationStatusIgnoresOrder(t *testing.T) {
	const (
		a = "{machineRef: a, input: {hostImage: img-a, provisioningFormat: CloudInit}}"
		b = "{machineRef: b, input: {hostImage: img-b, provisioningFormat: Ignition}}"
	)
	swapped := strings.NewReplacer("img-a", "img-b", "CloudInit", "Ignition").Replace(a) + ", " +
		strings.NewReplacer("img-b", "img-a", "Ignition", "CloudInit").Replace(b)
	runRows(t, "machineoperations/status", map[string]row{
		"reversed":           {was: status(a + ", " + b), now: status(b + ", " + a)},
		"reversed, one more": {was: status(a + ", " + b), now: status("{machineRef: c}, " + b + ", " + a)},
		"swapped": {was: status(a + ", " + b), now: status(swapped), want: []cause{
			{invalid, "status.targets[a].input.provisioningFormat", "CloudInit is frozen"}, {invalid, "status.targets[a].input.hostImage", `"img-a" is frozen`},
			{invalid, "status.targets[b].input.provisioningFormat", "Ignition is frozen"}, {invalid, "status.targets[b].input.hostImage", `"img-b" is frozen`},
		}},
	})
}

// A status as large as it gets is judged by key, and a denial stays readable.
func TestValidateOperationStatusWithManyTargets(t *testing.T) {
	many := func(phase, image string) string {
		var targets []string
		for i := range 3000 {
			targets = append(targets, fmt.Sprintf("{machineRef: worker-%04d, phase: %s, message: %s, input: {hostImage: %s, provisioningFormat: CloudInit}}",
				i, phase, strings.Repeat("m", 300), image))
		}
		return status(strings.Join(targets, ", "))
	}
	was := request(t, "machineoperations/status", many("Pending", "img-a"), many("InProgress", "img-a"))
	require.Greater(t, len(was.Object.Raw), 1_000_000)
	require.True(t, post(t, ValidatePath, was).Allowed)

	was.Object.Raw = []byte(strings.Replace(string(was.OldObject.Raw), `"img-a"`, `"img-b"`, 1))
	requireCauses(t, "machineoperations/status", post(t, ValidatePath, was), []cause{{invalid, "status.targets[worker-0000].input.hostImage", "may not change"}})

	was.Object.Raw = []byte(strings.ReplaceAll(string(was.OldObject.Raw), `"img-a"`, `"img-b"`))
	response := post(t, ValidatePath, was)
	require.Len(t, response.Result.Details.Causes, 8)
	require.Contains(t, response.Result.Message, "(and 2992 more errors like it)")
	require.Less(t, len(response.Result.Message), 4096)
}

// Nothing may pass for want of the stored object to compare with.
func TestValidateOperationNeedsTheStoredObject(t *testing.T) {
	for _, resource := range []string{"machineoperations", "machineoperations/status"} {
		r := request(t, resource, "{}", "spec: {operationKind: HostReplace, machineRef: a}")
		r.Operation = admissionv1.Update
		for _, raw := range [][]byte{nil, []byte("null")} {
			r.OldObject.Raw = raw
			response := post(t, ValidatePath, r)
			require.False(t, response.Allowed)
			require.Equal(t, int32(http.StatusBadRequest), response.Result.Code)
			require.Contains(t, response.Result.Message, "an update of MachineOperation cannot be judged without the stored object")
		}
	}
}
