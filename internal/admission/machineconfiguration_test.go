package admission

import (
	"strings"
	"testing"
)

const inert = "spec.template.host.provisioningFormat: has no effect without an image beside it"

// Both configuration kinds carry the same template.
func templateRows() map[string]row {
	return map[string]row{
		"no spec":                    {now: "{}"},
		"no host":                    {now: "spec: {template: {}}"},
		"a pair":                     {now: "spec: {template: {host: {image: img-t, provisioningFormat: Ignition}}}"},
		"an image alone":             {now: "spec: {template: {host: {image: img-t}}}"},
		"a format alone":             {now: "spec: {template: {host: {provisioningFormat: Ignition}}}", warn: []string{inert}},
		"a format beside whitespace": {now: `spec: {template: {host: {image: " ", provisioningFormat: Ignition}}}`, warn: []string{inert}},
		"a format alone, labelled":   {was: "spec: {template: {host: {provisioningFormat: Ignition}}}", now: "spec: {template: {host: {provisioningFormat: Ignition}}}"},
		"an image withdrawn":         {was: "spec: {template: {host: {image: img-t, provisioningFormat: Ignition}}}", now: "spec: {template: {host: {provisioningFormat: Ignition}}}", warn: []string{inert}},
		"a bad format": {now: "spec: {template: {host: {image: img-t, provisioningFormat: cloud-init}}}",
			want: []cause{{notSupported, "spec.template.host.provisioningFormat", `did you mean "CloudInit"?`}}},
		"a bad image": {now: `spec: {template: {host: {image: "img\u200b"}}}`,
			want: []cause{{invalid, "spec.template.host.image", "U+200B, found at position 4"}}},
		"a bad format, stored": {was: "spec: {template: {host: {image: img-t, provisioningFormat: weird}}}", now: "spec: {priority: 3, template: {host: {image: img-t, provisioningFormat: weird}}}",
			warn: []string{"spec.template.host.provisioningFormat: stored before and still wrong"}},
		"a long image": {now: "spec: {template: {host: {image: " + strings.Repeat("a", 2049) + "}}}",
			want: []cause{{tooLong, "spec.template.host.image", "may not be longer than 2048 bytes, and has 2049"}}},
		"image of the wrong shape":    {now: "spec: {template: {host: {image: 7}}}", want: []cause{{typeInvalid, "spec.template.host.image", "7: must be a string"}}},
		"spec of the wrong shape":     {now: "spec: 1", want: []cause{{typeInvalid, "spec", "1: must be an object"}}},
		"template of the wrong shape": {now: "spec: {template: oops}", want: []cause{{typeInvalid, "spec.template", `"oops": must be an object`}}},
		"host of the wrong shape":     {now: "spec: {template: {host: [1]}}", want: []cause{{typeInvalid, "spec.template.host", "[1]: must be an object"}}},
	}
}

func TestValidateConfiguration(t *testing.T) {
	runRows(t, "machineconfigurations", templateRows())
}

func TestValidateVersion(t *testing.T) {
	runRows(t, "machineconfigurationversions", templateRows())

	const deployed = "{spec: {version: 3, template: {host: {image: img-t}, serial: 9007199254740993}}, status: {deployed: true}}"
	immutable := []cause{{forbidden, "spec", "may not change because this version is deployed (status.deployed); create the next version of its configuration instead"}}
	runRows(t, "machineconfigurationversions", map[string]row{
		"deployed: untouched":      {was: deployed, now: deployed},
		"deployed: labelled":       {was: deployed, now: "{metadata: {labels: {a: b}}, spec: {template: {serial: 9007199254740993, host: {image: img-t}}, version: 3}}"},
		"deployed: image":          {was: deployed, now: "spec: {version: 3, template: {host: {image: img-u}, serial: 9007199254740993}}", want: immutable},
		"deployed: number":         {was: deployed, now: "spec: {version: 4, template: {host: {image: img-t}, serial: 9007199254740993}}", want: immutable},
		"deployed: unknown field":  {was: deployed, now: "spec: {version: 3, template: {host: {image: img-t}, serial: 9007199254740992}}", want: immutable},
		"deployed: field added":    {was: deployed, now: "spec: {version: 3, knob: 1, template: {host: {image: img-t}, serial: 9007199254740993}}", want: immutable},
		"deployed: spec gone":      {was: deployed, now: "{}", want: immutable},
		"a typed status is nought": {was: "{spec: {version: 3}}", now: "{spec: {version: 4}, status: {deployed: true}}"},
		"deployed: false":          {was: "{spec: {version: 3}, status: {deployed: false}}", now: "spec: {version: 4}"},
	})
}
