package plugin

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"
)

// in runs the plugin on manifests, without a cluster.
func in(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	streams, input, out, errs := genericiooptions.NewTestIOStreams()
	input.WriteString(stdin)
	code = Run(t.Context(), args, streams)
	return out.String(), errs.String(), code
}

const head = "apiVersion: unbounded-cloud.io/v1alpha3\nkind: "

func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		manifest      string
		finding, rule string // empty: clean
		words         string
		crds          bool
	}{
		"clean":              {"Machine\nmetadata: {name: a}\nspec: {host: {image: img-a, provisioningFormat: CloudInit}}", "", "", "", true},
		"format":             {"Machine\nmetadata: {name: a}\nspec: {host: {image: img-a, provisioningFormat: cloud-init}}", "refuse", "formatValue", `did you mean "CloudInit"?`, false},
		"image":              {"MachineConfiguration\nmetadata: {name: a}\nspec: {template: {host: {image: \"a\\u200bb\"}}}", "refuse", "imageValue", "invisible character U+200B", false},
		"trim":               {"MachineConfigurationVersion\nmetadata: {name: a-v1}\nspec: {version: 1, template: {host: {image: ' a'}}}", "trim", "trim", "correct the manifest", false},
		"inert":              {"MachineConfiguration\nmetadata: {name: a}\nspec: {template: {host: {provisioningFormat: Ignition}}}", "inert", "inertFormat", "has no effect without an image", false},
		"fleet":              {"MachineOperation\nmetadata: {generateName: swap-}\nspec: {operationKind: HostReplace, machineSelector: {}}", "refuse", "fleetSelector", "at least one label", false},
		"parameters":         {"MachineOperation\nmetadata: {generateName: swap-}\nspec: {operationKind: HostReplace, machineRef: a, parameters: {maxInFlight: '0'}}", "replace", "InvalidParameters", `"0" must be a whole number from 1 to 6000; correct the value`, true},
		"other parameters":   {"MachineOperation\nmetadata: {generateName: swap-}\nspec: {operationKind: HostReplace, machineRef: a, parameters: {maxFailures: '2', pause: 'true', force: x}}", "", "", "", true},
		"of another kind":    {"MachineOperation\nmetadata: {name: a}\nspec: {operationKind: HostReboot, machineRef: a, parameters: {pause: x}}", "", "", "", false},
		"fixed name":         {"MachineOperation\nmetadata: {name: swap}\nspec: {operationKind: HostReplace, machineRef: a}", "warn", "fixedName", "use metadata.generateName with kubectl create", true},
		"generated name":     {"MachineOperation\nmetadata: {generateName: swap-}\nspec: {operationKind: HostReplace, machineRef: a}", "", "", "", true},
		"both names":         {"MachineOperation\nmetadata: {name: swap, generateName: swap-}\nspec: {operationKind: HostReplace, machineRef: a}", "warn", "fixedName", "NameUsed", false},
		"shape":              {"Machine\nmetadata: {name: a}\nspec: {host: {image: [a]}}", "refuse", "shape", "must be a string", false},
		"status is dropped":  {"Machine\nmetadata: {name: a}\nspec: {host: {image: a}}\nstatus: {observedProvisioningFormat: Ignition}", "", "", "", false},
		"unknown field":      {"Machine\nmetadata: {name: a}\nspec: {host: {img: a}}", "schema", "schema", "is not known to the CRD", true},
		"schema":             {"MachineOperation\nmetadata: {name: a}\nspec: {operationKind: Nothing, machineRef: a}", "schema", "schema", `Unsupported value: "Nothing"`, true},
		"unknown unasked":    {"Machine\nmetadata: {name: a}\nspec: {host: {img: a}}", "", "", "", false},
		"another kind":       {"Elsewhere\nmetadata: {name: a}\nspec: {host: {provisioningFormat: x}}", "", "", "", false},
		"a list of machines": {"List\nitems: [{apiVersion: unbounded-cloud.io/v1alpha3, kind: Machine, metadata: {name: a}, spec: {host: {provisioningFormat: x}}}]", "refuse", "formatValue", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			text := head + test.manifest
			if name == "a list of machines" {
				text = "apiVersion: v1\nkind: " + test.manifest
			}
			dir := folder(t, map[string]string{"m.yaml": text, "pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"})
			args := []string{"check", "-f", dir, "-o", "json"}
			if test.crds {
				args = append(args, "--with-crds")
			}
			stdout, stderr, code := in(t, "", args...)
			require.Empty(t, stderr)
			var findings []finding
			require.NoError(t, json.Unmarshal([]byte(stdout), &findings), stdout)
			if test.finding == "" {
				require.Equal(t, 0, code, stdout)
				require.Empty(t, findings)
				return
			}
			require.Equal(t, 1, code)
			require.Len(t, findings, 1, stdout)
			require.Equal(t, [2]string{test.finding, test.rule}, [2]string{findings[0].Finding, findings[0].Rule})
			require.Contains(t, findings[0].Message, test.words)
			require.Equal(t, filepath.Join(dir, "m.yaml"), findings[0].Source)
			require.NotEmpty(t, findings[0].Name)
		})
	}
}

// The output for people has 80 columns, colours only on a terminal, and a summary.
func TestCheckForPeople(t *testing.T) {
	dir := folder(t, map[string]string{"deep/" + strings.Repeat("a", 60) + ".yaml": head + "Machine\nmetadata: {name: rack7-node-a}\nspec: {host: {image: ' a', provisioningFormat: ignition}}\n---\n" + head + "Machine\nmetadata: {name: b}\n"})
	stdout, _, code := in(t, "", "check", "-R", "-f", dir)
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "FINDING  RULE                   OBJECT\n")
	require.Contains(t, stdout, "refuse   formatValue            Machine/rack7-node-a\n         in "+dir+"/deep/")
	require.Contains(t, stdout, "         spec.host.provisioningFormat: Unsupported value: \"ignition\"")
	require.Contains(t, stdout, "trim     trim                   Machine/rack7-node-a")
	require.True(t, strings.HasSuffix(stdout, "2 objects, 2 findings\n"), stdout)
	require.NotContains(t, stdout, "\x1b")
	for line := range strings.Lines(stdout) {
		if !strings.HasPrefix(line, "         in "+dir) { // a path may be copied
			requireNarrow(t, line)
		}
	}
	stdout, _, code = in(t, "", "check", "-f", dir)
	require.Equal(t, 2, code, "without -R there is nothing in it")
	require.Empty(t, stdout)

	stdout, _, code = in(t, head+"Machine\nmetadata: {name: a}\n", "check", "-f", "-")
	require.Equal(t, 0, code)
	require.Equal(t, "1 object, 0 findings\n", stdout)
	stdout, _, _ = in(t, head+"Machine\nmetadata: {name: a}\nspec: {host: {image: ' a'}}", "check", "-f", "-", "-o", "yaml")
	var findings []finding
	require.NoError(t, yaml.UnmarshalStrict([]byte(stdout), &findings))
	require.Len(t, findings, 1)
}

func TestCheckAgainstOtherCRDs(t *testing.T) {
	stdout, _, code := in(t, head+"Machine\nmetadata: {name: a}\nspec: {host: {futureKnob: {depth: 1}, img: a}}", "check", "-f", "-", "-o", "json", "--with-crds=../../test/e2e/testdata/foreign-crds")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, `"field":"spec.host.img"`)
	require.NotContains(t, stdout, "futureKnob", "that one is known there")
	_, stderr, code := in(t, "", "check", "-f", "-", "--with-crds="+t.TempDir())
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "error: --with-crds: there is no CRD of unbounded-cloud.io in ")
}

func TestExplainFiles(t *testing.T) {
	version := head + "MachineConfigurationVersion\nmetadata: {name: web-v3, labels: {unbounded-cloud.io/machine-configuration: web}}\nspec: {version: 3, template: {host: {image: img-t, provisioningFormat: CloudInit}}}\n---\n"
	machine := head + "Machine\nmetadata: {name: rack7-node-a}\n"
	for name, test := range map[string]struct {
		manifests string
		want      explanation
		code      int
	}{
		"template":        {version + machine + "spec: {configurationRef: {name: web}}", explanation{Image: "img-t", ImageSource: "template", Format: "CloudInit", FormatSource: "template", Version: "web-v3"}, 0},
		"pinned":          {version + machine + "spec: {configurationRef: {name: web, version: 3}}", explanation{Image: "img-t", ImageSource: "template", Format: "CloudInit", FormatSource: "template", Version: "web-v3"}, 0},
		"version missing": {machine + "spec: {configurationRef: {name: web, version: 4}}", explanation{Reason: "VersionNotFound", Refused: `MachineConfigurationVersion "web-v4", which spec.configurationRef pins, does not exist; create it, or pin one that exists`}, 1},
		"kept":            {machine, explanation{ImageSource: "kept", Format: "CloudInit", FormatSource: "legacy fallback"}, 0},
		"from a dump":     {machine + "spec: {host: {image: img-a}}\nstatus: {observedProvisioningFormat: CloudInit}", explanation{Image: "img-a", ImageSource: "machine", Format: "CloudInit", FormatSource: "observation"}, 0},
		"not deliverable": {machine + "spec: {host: {image: img-a, provisioningFormat: Ignition}}", explanation{Image: "img-a", ImageSource: "machine", Format: "Ignition", FormatSource: "machine", Reason: "IgnitionNotDeliverable", Refused: "the image boots with Ignition, and this controller generates cloud-init only; the operation would fail before the provider is called"}, 1},
		"observed otherwise": {machine + "spec: {host: {image: img-a, provisioningFormat: CloudInit}}\nstatus: {observedProvisioningFormat: Ignition}", explanation{Image: "img-a", ImageSource: "machine", Format: "CloudInit", FormatSource: "machine",
			Note: "the host is observed to run Ignition; keep the declaration of CloudInit until its agent has reported that"}, 0},
		"cannot be read":   {machine + "spec: {host: {image: 5}}", explanation{Reason: "Unreadable", Refused: "the Machine cannot be read: "}, 1},
		"needs to declare": {machine + "spec: {host: {image: img-a}}\nstatus: {observedProvisioningFormat: Ignition}", explanation{Reason: "FormatNotDeclared", Refused: "Machine spec.host.provisioningFormat: must be declared because the host is known to run Ignition"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := in(t, test.manifests, "explain", "-f", "-", "-o", "json")
			require.Equal(t, test.code, code, stderr)
			var got explanation
			require.NoError(t, json.Unmarshal([]byte(stdout), &got), stdout)
			require.True(t, strings.HasPrefix(got.Refused, test.want.Refused), got.Refused)
			test.want.Kind, test.want.Name, test.want.Refused = "Machine", "rack7-node-a", got.Refused
			require.Equal(t, test.want, got)
			var keys map[string]any
			require.NoError(t, json.Unmarshal([]byte(stdout), &keys))
			for _, key := range []string{"kind", "name", "image", "imageSource", "format", "formatSource", "refused"} {
				require.Contains(t, keys, key)
			}
		})
	}
	stdout, _, code := in(t, version+machine+"spec: {configurationRef: {name: web}}", "explain", "-f", "-")
	require.Equal(t, 0, code)
	require.Equal(t, `Machine rack7-node-a
  image     img-t, from MachineConfigurationVersion web-v3
  format    CloudInit, from MachineConfigurationVersion web-v3
  refused   no
`, stdout)
	_, stderr, code := in(t, version, "explain", "-f", "-")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "error: there is no Machine in -")
}

func TestWithoutACluster(t *testing.T) {
	_, stderr, code := in(t, "", "audit")
	require.Equal(t, 2, code)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.Contains(t, stderr, "--kubeconfig")
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"explain", "--help"}, {"audit", "--help"}, {"check", "--help"}} {
		stdout, _, code := in(t, "", args...)
		require.Equal(t, 0, code)
		require.Contains(t, stdout, "kubectl hostformat", "as users call it")
		require.Contains(t, stdout, "Exit status")
	}
}

func TestColours(t *testing.T) {
	var out bytes.Buffer
	w := writer{&out, true}
	w.describe(&explanation{Kind: "Machine", Name: "a", Refused: "no image", Reason: "R"})
	require.Contains(t, out.String(), "\x1b[31mR: no image\x1b[0m")
	t.Setenv("NO_COLOR", "")
	require.False(t, newWriter(&out).colours)
	_, terminal, err := pty.Open()
	if err != nil {
		t.Skipf("NO_COLOR takes a terminal, and there is none: %v", err)
	}
	defer terminal.Close()
	require.True(t, newWriter(terminal).colours)
	t.Setenv("NO_COLOR", "1")
	require.False(t, newWriter(terminal).colours)
}
