package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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

// Once the condition Frozen is True, no target can be added. The rules for the
// existing targets stay the same.
func TestValidateOperationStatusKeepsFrozenTargets(t *testing.T) {
	const (
		a     = "{machineRef: a, input: {hostImage: img-a, provisioningFormat: CloudInit}}"
		b     = "{machineRef: b, input: {hostImage: img-b, provisioningFormat: CloudInit}}"
		words = "may not be added because the targets of this operation are frozen (condition Frozen is True); create a new MachineOperation for this Machine"
	)
	with := func(conditions, targets string) string {
		return "{spec: {operationKind: HostReplace}, status: {conditions: [" + conditions + "], targets: [" + targets + "]}}"
	}
	const frozen, other = "{type: Frozen, status: 'True'}", "{type: Complete, status: 'True'}"
	added := []cause{{forbidden, "status.targets[b]", words}}
	runRows(t, "machineoperations/status", map[string]row{
		"a pair":                  {was: with(frozen, a), now: with(frozen, a+", "+b), want: added},
		"a target without input":  {was: with(frozen, a), now: with(frozen, "{machineRef: b}, "+a), want: added},
		"beside other conditions": {was: with(other+", "+frozen, a), now: with(other+", "+frozen, a+", "+b), want: added},
		"to none":                 {was: with(frozen, ""), now: with(frozen, b), want: added},
		"to an absent list":       {was: "status: {conditions: [" + frozen + "]}", now: with(frozen, b), want: added},
		"condition taken off":     {was: with(frozen, a), now: with("", a+", "+b), want: added},
		"condition turned":        {was: with(frozen, a), now: with("{type: Frozen, status: 'False'}", a+", "+b), want: added},
		"in the place of another": {was: with(frozen, "{machineRef: a}"), now: with(frozen, b), want: added},
		"of another kind":         {was: strings.Replace(with(frozen, a), "HostReplace", "HostReboot", 1), now: with(frozen, a+", "+b), want: added},
		"two":                     {was: with(frozen, a), now: with(frozen, "{machineRef: c}, "+a+", "+b), want: append([]cause{{forbidden, "status.targets[c]", words}}, added...)},
		"twice":                   {was: with(frozen, a), now: with(frozen, a+", "+b+", "+b), want: append(added[:1:1], cause{duplicate, "status.targets[2].machineRef", `"b"`})},
		"with another fault": {was: with(frozen, a), now: with(frozen, a+", {machineRef: b, input: {provisioningFormat: weird}}"),
			want: append(added[:1:1], cause{notSupported, "status.targets[b].input.provisioningFormat", `"weird"`})},
		"a duplicate is not new": {was: with(frozen, a), now: with(frozen, a+", "+a), want: []cause{{duplicate, "status.targets[1].machineRef", `"a"`}}},

		"not frozen yet":                {was: with("", a), now: with(frozen, a+", "+b)},
		"frozen in the same write":      {was: "status: {}", now: with(frozen, a+", "+b)},
		"Frozen is False":               {was: with("{type: Frozen, status: 'False'}", a), now: with(frozen, a+", "+b)},
		"Frozen is unknown":             {was: with("{type: Frozen}", a), now: with(frozen, a+", "+b)},
		"another condition":             {was: with(other, a), now: with(frozen, a+", "+b)},
		"the same ones":                 {was: with(frozen, a+", "+b), now: with(frozen, b+", "+a)},
		"progress":                      {was: with(frozen, a), now: with(frozen, strings.Replace(a, "input", "phase: Failed, input", 1))},
		"one without a pair goes":       {was: with(frozen, a+", {machineRef: c}"), now: with(frozen, a)},
		"was added before":              {was: with(frozen, a+", {machineRef: late}"), now: with(frozen, "{machineRef: late, phase: Failed}, "+a)},
		"conditions of the wrong shape": {was: "status: {conditions: {Frozen: 'True'}, targets: [" + a + "]}", now: with("", a+", "+b)},
	})
}

// A HostReplace with a frozen pair keeps its final phase.
func TestValidateOperationStatusKeepsTheFinalPhase(t *testing.T) {
	const (
		pair   = "{machineRef: a, input: {hostImage: img-a, provisioningFormat: CloudInit}}"
		legacy = "{machineRef: a, input: {hostImage: img-a}}"
	)
	of := func(kind, phase, targets string) string {
		return "{spec: {operationKind: " + kind + "}, status: {" + phase + "targets: [" + targets + "]}}"
	}
	replace := func(phase string) string { return of("HostReplace", phase, pair) }
	words := func(phase string) []cause {
		return []cause{{forbidden, "status.phase", "may not change because " + phase + " is final for a HostReplace whose image and format are frozen; create a new MachineOperation instead"}}
	}
	rows := map[string]row{
		"absent":        {was: replace("phase: Complete, "), now: replace(""), want: words("Complete")},
		"null":          {was: replace("phase: Complete, "), now: replace("phase: null, "), want: words("Complete")},
		"empty":         {was: replace("phase: Failed, "), now: replace("phase: '', "), want: words("Failed")},
		"wrong shape":   {was: replace("phase: Failed, "), now: replace("phase: [Failed], "), want: words("Failed")},
		"one of theirs": {was: replace("phase: Failed, "), now: replace("phase: Retry, "), want: words("Failed")},
		"status gone": {was: replace("phase: Failed, "), now: "spec: {operationKind: HostReplace}",
			want: append(words("Failed"), cause{required, "status.targets[a]", "may not be removed"})},
		"the second pair counts": {was: of("HostReplace", "phase: Failed, ", "{machineRef: b}, "+pair), now: of("HostReplace", "phase: Pending, ", "{machineRef: b}, "+pair), want: words("Failed")},
		"a kept image counts": {was: of("HostReplace", "phase: Failed, ", "{machineRef: a, input: {provisioningFormat: CloudInit}}"),
			now: of("HostReplace", "phase: Pending, ", "{machineRef: a, input: {provisioningFormat: CloudInit}}"), want: words("Failed")},
		"while being deleted":       {was: replace("phase: Failed, "), now: "{metadata: {deletionTimestamp: now}, " + replace("phase: Pending, ")[1:], want: words("Failed")},
		"the sent kind is not read": {was: replace("phase: Failed, "), now: of("HostReboot", "phase: Pending, ", pair), want: words("Failed")},

		"stays":                    {was: replace("phase: Complete, "), now: replace("phase: Complete, message: m, ")},
		"becomes final":            {was: replace("phase: InProgress, "), now: replace("phase: Complete, ")},
		"turned back before":       {was: replace("phase: InProgress, "), now: replace("phase: Pending, ")},
		"set for the first time":   {was: replace(""), now: replace("phase: Failed, ")},
		"another kind":             {was: of("HostReboot", "phase: Failed, ", pair), now: of("HostReboot", "phase: Pending, ", pair)},
		"no kind":                  {was: "status: {phase: Failed, targets: [" + pair + "]}", now: replace("phase: Pending, ")},
		"a legacy snapshot":        {was: of("HostReplace", "phase: Failed, ", legacy), now: of("HostReplace", "phase: Pending, ", legacy)},
		"no targets":               {was: "{spec: {operationKind: HostReplace}, status: {phase: Failed}}", now: "{spec: {operationKind: HostReplace}, status: {phase: Pending}}"},
		"a pair in the same write": {was: of("HostReplace", "phase: Failed, ", legacy), now: replace("phase: Pending, ")},
		"wrong before":             {was: replace("phase: complete, "), now: replace("phase: Pending, ")},
	}
	for _, was := range []string{"Complete", "Failed"} {
		for _, now := range []string{"Pending", "InProgress", "Complete", "Failed"} {
			if was != now {
				rows[was+" to "+now] = row{was: replace("phase: " + was + ", "), now: replace("phase: " + now + ", "), want: words(was)}
			}
		}
	}
	runRows(t, "machineoperations/status", rows)
}

// Reordering targets changes nothing. Moving a pair to another Machine changes two.
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

// Targets of the largest status are matched by Machine, and a denial stays readable.
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
