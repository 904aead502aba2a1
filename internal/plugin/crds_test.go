package plugin

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const misspelt = head + "Machine\nmetadata: {name: a}\nspec: {host: {img: a}}\n"

// CRDs in a folder are found in every common format. Without CRDs, nothing is called
// clean.
func TestCheckFindsCRDs(t *testing.T) {
	crd := func(kind string) string {
		for _, file := range []string{"machines", "machineoperations"} {
			text, err := os.ReadFile("../../manifests/crds/unbounded-cloud.io_" + file + ".yaml")
			require.NoError(t, err)
			if strings.Contains(string(text), "\n    kind: "+kind+"\n") {
				return strings.TrimPrefix(string(text), "---\n")
			}
		}
		require.Fail(t, kind)
		return ""
	}
	machines, operations := crd("Machine"), crd("MachineOperation")
	asJSON, err := yaml.YAMLToJSON([]byte(machines))
	require.NoError(t, err)
	list := `{"apiVersion":"v1","kind":"List","items":[` + string(asJSON) + `]}`
	stranger := strings.NewReplacer("unbounded-cloud.io", "example.com", "v1alpha3", "v1").Replace(machines)
	swap := head + "MachineOperation\nmetadata: {name: swap}\nspec: {operationKind: HostReplace, machineRef: a}\n"
	for name, test := range map[string]struct {
		files    map[string]string
		manifest string
		trouble  string // empty: the misspelt field is found
	}{
		"yaml":                     {map[string]string{"a.yaml": machines}, misspelt, ""},
		"yml":                      {map[string]string{"a.yml": machines}, misspelt, ""},
		"json":                     {map[string]string{"a.json": string(asJSON)}, misspelt, ""},
		"a list, as kubectl gets":  {map[string]string{"a.yaml": list}, misspelt, ""},
		"second document":          {map[string]string{"a.yaml": operations + "\n---\n" + machines}, misspelt, ""},
		"separator with a comment": {map[string]string{"a.yaml": operations + "\n--- # next\n" + machines}, misspelt, ""},
		"separator with space":     {map[string]string{"a.yaml": operations + "\n---  \n" + machines}, misspelt, ""},
		"carriage returns":         {map[string]string{"a.yaml": strings.ReplaceAll(operations+"\n---\n"+machines, "\n", "\r\n")}, misspelt, ""},
		"beside another group":     {map[string]string{"a.yaml": stranger + "\n---\n" + machines, "b.yaml": "kind: Elsewhere\nspec: a text\n"}, misspelt, ""},
		"empty folder":             {nil, misspelt, "there is no CRD of unbounded-cloud.io in "},
		"no CRD":                   {map[string]string{"a.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"}, misspelt, "there is no CRD of unbounded-cloud.io in "},
		"another group only":       {map[string]string{"a.yaml": stranger}, misspelt, "there is no CRD of unbounded-cloud.io in "},
		"another version":          {map[string]string{"a.yaml": strings.ReplaceAll(machines, "v1alpha3", "v1")}, misspelt, "machines.unbounded-cloud.io has no version v1alpha3"},
		"not YAML":                 {map[string]string{"a.yaml": "a: b: c"}, misspelt, "a.yaml: "},
		"another kind":             {map[string]string{"a.yaml": machines}, swap, "has no CRD of MachineOperation, and 1 manifest was judged by the rules alone; add the CRD to the folder"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, test.files)
			stdout, stderr, code := in(t, test.manifest, "check", "-f", "-", "-o", "json", "--with-crds="+dir)
			if test.trouble != "" {
				require.Equal(t, exitTrouble, code, stdout)
				require.Contains(t, stderr, "error: --with-crds: ")
				require.Contains(t, stderr, test.trouble)
				return
			}
			require.Equal(t, exitFindings, code, stderr)
			require.Contains(t, stdout, `"field":"spec.host.img"`)
		})
	}
}

// The error for a folder that is not part of its flag says what to write.
func TestCheckFolderApart(t *testing.T) {
	_, stderr, code := in(t, misspelt, "check", "-f", "-", "--with-crds", "crds")
	require.Equal(t, exitTrouble, code)
	require.Equal(t, "error: the folder of --with-crds goes after an \"=\": --with-crds=crds\n", stderr)
	_, stderr, code = in(t, misspelt, "check", "m.yaml")
	require.Equal(t, exitTrouble, code)
	require.Equal(t, "error: manifests are named with -f: -f m.yaml\n", stderr)
}

// Findings of the schema have the path and the message of the API server.
func TestCheckSaysWhere(t *testing.T) {
	for manifest, want := range map[string]finding{
		"ttlSecondsAfterFinished: 1.5":        {Field: "spec.ttlSecondsAfterFinished", Message: "must be of type int32"},
		"ttlSecondsAfterFinished: 2147483648": {Field: "spec.ttlSecondsAfterFinished", Message: "int32"},
		"ttlSecondsAfterFinished: -1":         {Field: "spec.ttlSecondsAfterFinished", Message: "greater than or equal to 0"},
		"ttlSecondsAfterFinished: a":          {Field: "spec.ttlSecondsAfterFinished", Message: "must be of type integer"},
		"parameters: {a: 1.5}":                {Field: "spec.parameters.a", Message: "must be of type string"},
	} {
		t.Run(manifest, func(t *testing.T) {
			stdout, _, code := in(t, head+"MachineOperation\nmetadata: {generateName: swap-}\nspec: {operationKind: HostReplace, machineRef: a, "+manifest+"}\n", "check", "-f", "-", "-o", "json", "--with-crds")
			require.Equal(t, exitFindings, code)
			var findings []finding
			require.NoError(t, json.Unmarshal([]byte(stdout), &findings))
			require.Len(t, findings, 1, stdout)
			require.Equal(t, want.Field, findings[0].Field, findings[0].Message)
			require.Contains(t, findings[0].Message, want.Message)
		})
	}
	stdout, _, _ := in(t, head+"MachineOperation\nmetadata: {generateName: swap-}\nspec: {operationKind: HostReplace, machineRef: a, ttlSecondsAfterFinished: 86400}\n", "check", "-f", "-", "--with-crds")
	require.Equal(t, "1 object, 0 findings\n", stdout)
}

// On a create, the status is dropped before the schema is checked.
func TestCheckPassesOverStatus(t *testing.T) {
	const machine = head + "Machine\nmetadata: {name: a}\nspec: {host: {image: img-a}}\nstatus: "
	for _, status := range []string{"{observedProvisioningFormat: bogus}", "{observedFormat: Ignition}", "a text"} {
		stdout, _, _ := in(t, machine+status, "check", "-f", "-", "--with-crds")
		require.Equal(t, "1 object, 0 findings\n", stdout, status)
	}
}
