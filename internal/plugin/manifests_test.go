package plugin

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// The finding for a misspelt kind suggests the right one. The object is neither judged
// nor checked against CRDs.
func TestMisspeltKind(t *testing.T) {
	for kind, meant := range map[string]string{"machine": "Machine", "Machines": "Machine", "MACHINE": "Machine", "mcv": "MachineConfigurationVersion", "machineOperation": "MachineOperation"} {
		manifest := head + kind + "\nmetadata: {name: a}\nspec: {host: {image: ' a'}}"
		for _, args := range [][]string{{}, {"--with-crds"}, {"--with-crds=../../manifests/crds"}} {
			stdout, stderr, code := in(t, manifest, append([]string{"check", "-f", "-", "-o", "json"}, args...)...)
			require.Equal(t, exitFindings, code, stderr)
			var findings []finding
			require.NoError(t, json.Unmarshal([]byte(stdout), &findings))
			require.Equal(t, []finding{{Finding: findRefuse, Rule: "kind", Kind: kind, Name: "a", Field: "kind",
				Message: `no such kind: "` + kind + `"; write ` + meant, Source: "standard input"}}, findings)
		}
		_, stderr, code := in(t, manifest, "explain", "-f", "-")
		require.Equal(t, exitTrouble, code)
		require.Equal(t, `error: standard input: no such kind: "`+kind+`"; write `+meant+"\n", stderr)
	}
}

// A Machine without a name is shown with its generateName.
func TestGeneratedName(t *testing.T) {
	manifest := head + "Machine\nmetadata: {generateName: gen-}\nspec: {host: {image: ' a'}}"
	stdout, _, _ := in(t, manifest, "explain", "-f", "-")
	require.Contains(t, stdout, "Machine gen-*\n")
	stdout, _, _ = in(t, manifest, "check", "-f", "-")
	require.Contains(t, stdout, "Machine/gen-*\n")
}
