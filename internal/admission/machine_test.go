package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const undeclared = "must be declared because this host is known to run Ignition"

func TestValidateMachine(t *testing.T) {
	const observed = "status: {observedProvisioningFormat: Ignition}"
	runRows(t, "machines", map[string]row{
		"create without spec":          {now: "{}"},
		"create with an empty host":    {now: "spec: {host: {}}"},
		"create with a declared image": {now: "spec: {host: {image: img-a, provisioningFormat: Ignition}}"},
		"create with an image alone":   {now: "spec: {host: {image: img-a}}"},
		"create with a format alone":   {now: "spec: {host: {provisioningFormat: CloudInit}}"},
		"a status typed on create will not be stored": {
			now: "{spec: {host: {image: img-a}}, " + observed + "}"},

		"undeclared image on an Ignition host": {
			was: "{spec: {}, " + observed + "}", now: "{spec: {host: {image: img-a}}, " + observed + "}",
			want: []cause{{required, "spec.host.provisioningFormat", undeclared + ` (status.observedProvisioningFormat) and spec.host.image selects "img-a"; set it to CloudInit or Ignition`}}},
		"the stored observation counts, not the typed one": {
			was: "{spec: {}, " + observed + "}", now: "{spec: {host: {image: img-a}}, status: {observedProvisioningFormat: CloudInit}}",
			want: []cause{{required, "spec.host.provisioningFormat", undeclared}}},
		"a typed observation is not stored": {
			was: "spec: {}", now: "{spec: {host: {image: img-a}}, " + observed + "}"},
		"declared as CloudInit on an Ignition host": {
			was: "{spec: {}, " + observed + "}", now: "spec: {host: {image: img-a, provisioningFormat: CloudInit}}"},
		"undeclared image on a CloudInit host": {
			was: "{spec: {}, status: {observedProvisioningFormat: CloudInit}}", now: "spec: {host: {image: img-a}}"},

		"trimmed away is absent": {was: "{spec: {}, " + observed + "}", now: `spec: {host: {image: " \n"}}`},
		"every rule that is broken is named": {
			was: "{spec: {}, " + observed + "}", now: `spec: {host: {image: "a\u200bb", provisioningFormat: cloudInit}}`,
			want: []cause{
				{notSupported, "spec.host.provisioningFormat", `Unsupported value: "cloudInit": supported values: "CloudInit", "Ignition"; did you mean "CloudInit"?`},
				{invalid, "spec.host.image", `"a\u200bb": may not contain the invisible character U+200B, found at position 2`},
			}},

		"spec of the wrong shape":    {now: "spec: oops", want: []cause{{typeInvalid, "spec", `"oops": must be an object`}}},
		"host of the wrong shape":    {now: "spec: {host: oops}", want: []cause{{typeInvalid, "spec.host", `"oops": must be an object`}}},
		"host is a list":             {now: "spec: {host: [a]}", want: []cause{{typeInvalid, "spec.host", `["a"]: must be an object`}}},
		"image of the wrong shape":   {now: "spec: {host: {image: 7}}", want: []cause{{typeInvalid, "spec.host.image", "7: must be a string"}}},
		"stored so, and labelled":    {was: "spec: {host: oops}", now: "{metadata: {name: rack7-node-a, labels: {a: b}}, spec: {host: oops}}"},
		"stored so, and mended":      {was: "spec: {host: oops}", now: "spec: {host: {image: img-a}}"},
		"a judged key in other case": {now: "spec: {host: {Image: 7, ProvisioningFormat: 8}}"},
	})
}

func TestValidateMachineFormats(t *testing.T) {
	for _, format := range []string{"cloudInit", "cloudinit", "CLOUDINIT", "cloud-init", "ignition", "IGNITION", "Ignition ", "Ignition,CloudInit", "butane", " "} {
		hint := ""
		switch strings.ToLower(strings.Trim(strings.ReplaceAll(format, "-", ""), " ")) {
		case "cloudinit":
			hint = `; did you mean "CloudInit"?`
		case "ignition":
			hint = `; did you mean "Ignition"?`
		}
		message := fmt.Sprintf(`Unsupported value: %q: supported values: "CloudInit", "Ignition"%s`, format, hint)
		response := post(t, ValidatePath, request(t, "machines", "", fmt.Sprintf("spec: {host: {provisioningFormat: %q}}", format)))
		requireCauses(t, "machines", response, []cause{{notSupported, "spec.host.provisioningFormat", message}})
		require.Equal(t, message, response.Result.Details.Causes[0].Message)
	}
	for _, literal := range []string{"5", "true", "[CloudInit]", "{a: 1}"} {
		response := post(t, ValidatePath, request(t, "machines", "", "spec: {host: {provisioningFormat: "+literal+"}}"))
		requireCauses(t, "machines", response, []cause{{notSupported, "spec.host.provisioningFormat", `supported values: "CloudInit", "Ignition"`}})
	}
	response := post(t, ValidatePath, request(t, "machines", "", "spec: {host: {provisioningFormat: 5}}"))
	require.Contains(t, response.Result.Message, "Unsupported value: 5: supported")
}

func TestValidateMachineImages(t *testing.T) {
	long := strings.Repeat("x", 2048)
	runRows(t, "machines", map[string]row{
		"as long as it may be": {now: "spec: {host: {image: " + long + "}}"},
		"trimmed to that":      {now: `spec: {host: {image: " ` + long + ` "}}`},
		"longer": {now: "spec: {host: {image: " + long + "x}}",
			want: []cause{{tooLong, "spec.host.image", "may not be longer than 2048 bytes, and has 2049"}}},
		"byte order mark": {now: `spec: {host: {image: "\ufeffacme/os/plain-24:v3"}}`,
			want: []cause{{invalid, "spec.host.image", `"\ufeffacme/os/plain-24:v3": may not contain the invisible character U+FEFF, found at position 1`}}},
		"zero-width space": {now: `spec: {host: {image: "acme/os/plain-24:v3\u200b"}}`,
			want: []cause{{invalid, "spec.host.image", "U+200B, found at position 20"}}},
		"nothing but": {now: `spec: {host: {image: " \u200b "}}`,
			want: []cause{{invalid, "spec.host.image", `"\u200b": may not contain the invisible character U+200B, found at position 1`}}},
		"inner tab": {now: `spec: {host: {image: "a\tb"}}`,
			want: []cause{{invalid, "spec.host.image", `"a\tb": may not contain the invisible character U+0009, found at position 2`}}},
		"inner newline": {now: `spec: {host: {image: "a\nb"}}`,
			want: []cause{{invalid, "spec.host.image", "U+000A"}}},
		"inner space": {now: "spec: {host: {image: acme/os/my image}}"},
	})
}

// An object that was stored before the rules existed can be edited in other fields.
func TestValidateMachineRatchets(t *testing.T) {
	const (
		badFormat  = "{spec: {host: {image: img-a, provisioningFormat: cloudinit}}}"
		undeclared = "{spec: {host: {image: img-a}}, status: {observedProvisioningFormat: Ignition}}"
		labelled   = "{name: rack7-node-a, labels: {a: b}}"
	)
	notSupportedCloudInit := []cause{{notSupported, "spec.host.provisioningFormat", `"cloudinit"`}}
	mustDeclare := []cause{{required, "spec.host.provisioningFormat", "must be declared"}}
	runRows(t, "machines", map[string]row{
		"bad format: label":          {was: badFormat, now: "{metadata: " + labelled + ", spec: {host: {image: img-a, provisioningFormat: cloudinit}}}"},
		"bad format: other spec":     {was: badFormat, now: "spec: {host: {image: img-a, provisioningFormat: cloudinit}, kubernetes: {version: v2}}", warn: []string{`spec.host.provisioningFormat: stored before and still wrong: Unsupported value: "cloudinit"`}},
		"bad format: new image":      {was: badFormat, now: "spec: {host: {image: img-b, provisioningFormat: cloudinit}}", want: notSupportedCloudInit},
		"bad format: mended":         {was: badFormat, now: "spec: {host: {image: img-a, provisioningFormat: Ignition}}"},
		"bad format: image removed":  {was: badFormat, now: "spec: {host: {provisioningFormat: cloudinit}}", warn: []string{"still wrong"}},
		"bad format: spaces":         {was: badFormat, now: `spec: {host: {image: " img-a ", provisioningFormat: cloudinit}}`, warn: []string{"still wrong"}},
		"bad format: another bad":    {was: badFormat, now: "spec: {host: {image: img-a, provisioningFormat: CLOUDINIT}}", want: []cause{{notSupported, "spec.host.provisioningFormat", `"CLOUDINIT"`}}},
		"bad format: removed":        {was: badFormat, now: "spec: {host: {image: img-a}}"},
		"undeclared: label":          {was: undeclared, now: "{metadata: " + labelled + ", spec: {host: {image: img-a}}, status: {observedProvisioningFormat: Ignition}}"},
		"undeclared: finalizer gone": {was: "{metadata: {name: rack7-node-a, finalizers: [x], deletionTimestamp: now}, spec: {host: {image: img-a}}, status: {observedProvisioningFormat: Ignition}}", now: "{metadata: {name: rack7-node-a, deletionTimestamp: now}, spec: {host: {image: img-a}}, status: {observedProvisioningFormat: Ignition}}"},
		"undeclared: other spec":     {was: undeclared, now: "spec: {host: {image: img-a}, kubernetes: {version: v2}}", warn: []string{"spec.host.provisioningFormat: stored before and still wrong: Required value"}},
		"undeclared: new image":      {was: undeclared, now: "spec: {host: {image: img-b}}", want: mustDeclare},
		"undeclared: declared":       {was: undeclared, now: "spec: {host: {image: img-a, provisioningFormat: Ignition}}"},
		"undeclared: image removed":  {was: undeclared, now: "spec: {host: {}}"},
		"undeclared: spaces":         {was: undeclared, now: `spec: {host: {image: " img-a "}}`, warn: []string{"still wrong"}},
		"declaration withdrawn": {
			was:  "{spec: {host: {image: img-a, provisioningFormat: CloudInit}}, status: {observedProvisioningFormat: Ignition}}",
			now:  "spec: {host: {image: img-a}}",
			want: mustDeclare},
		"bad image: label":     {was: `{spec: {host: {image: "a\u200bb"}}}`, now: `{metadata: ` + labelled + `, spec: {host: {image: "a\u200bb"}}}`},
		"bad image: declared":  {was: `{spec: {host: {image: "a\u200bb"}}}`, now: `spec: {host: {image: "a\u200bb", provisioningFormat: CloudInit}}`, warn: []string{"spec.host.image: stored before and still wrong"}},
		"bad image: other bad": {was: `{spec: {host: {image: "a\u200bb"}}}`, now: `spec: {host: {image: "a\u200bc"}}`, want: []cause{{invalid, "spec.host.image", "U+200B"}}},
	})
}

// null, an empty value and an absent field mean the same in both handlers.
func TestSpellingsOfAbsent(t *testing.T) {
	for host, want := range map[string]struct {
		ops    []string
		denied bool // if the host is known to run Ignition
	}{
		`{}`:               {},
		`null`:             {},
		`{image: null}`:    {},
		`{image: ""}`:      {},
		`{image: " \t\n"}`: {ops: []string{"remove /spec/host/image"}},
		`{image: "  ", provisioningFormat: Ignition}`: {ops: []string{"remove /spec/host/image"}},
		`{image: x, provisioningFormat: null}`:        {denied: true},
		`{image: x, provisioningFormat: ""}`:          {denied: true},
	} {
		t.Run(host, func(t *testing.T) {
			for _, observed := range []string{"", "Ignition"} {
				r := request(t, "machines", "{spec: {host: {}}, status: {observedProvisioningFormat: "+observed+"}}", "spec: {host: "+host+"}")
				after, ops, _ := mutated(t, r)
				require.Equal(t, want.ops, ops)
				r.Object.Raw = after
				var causes []cause
				if want.denied && observed != "" {
					causes = []cause{{required, "spec.host.provisioningFormat", undeclared}}
				}
				requireCauses(t, "machines", post(t, ValidatePath, r), causes)
			}
		})
	}
}
