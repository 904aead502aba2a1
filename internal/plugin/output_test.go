package plugin

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const digest = "registry.example.com/os/flatcar-stable-amd64@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"

// An image is never cut, since it may be copied. A long one has a line of its own.
func TestExplainImageWhole(t *testing.T) {
	machine := head + "Machine\nmetadata: {name: a}\nspec: {host: {image: '" + digest + "1', provisioningFormat: CloudInit}}"
	stdout, _, code := in(t, machine, "explain", "-f", "-")
	require.Zero(t, code)
	require.Contains(t, stdout, "  image     "+digest+"1\n            declared in the Machine\n")
	stdout, _, _ = in(t, machine+"\n---\n"+head+"Machine\nmetadata: {name: b}", "explain", "-f", "-", "-o", "wide")
	require.Contains(t, stdout, digest+"1   ")

	// Images that differ in the last letter look different.
	op := "\n---\n" + head + "MachineOperation\nmetadata: {name: swap}\nspec: {operationKind: HostReplace}\nstatus: {targets: [{machineRef: a, input: {hostImage: '" + digest + "2', provisioningFormat: CloudInit}}]}"
	stdout, _, _ = newStub(t, machine+op).of(t, "explain", "mop/swap")
	require.Contains(t, stdout, "    frozen    "+digest+"2\n              CloudInit\n")
	require.Contains(t, stdout, "      image     "+digest+"1\n                declared in the Machine\n")
	require.Contains(t, stdout, "    differs   image\n")
	for line := range strings.Lines(stdout) {
		if !strings.Contains(line, digest) {
			requireNarrow(t, line)
		}
	}

	// A shorter one fits on the line.
	fits := strings.Repeat("i", 42)
	stdout, _, _ = in(t, strings.ReplaceAll(machine, digest+"1", fits), "explain", "-f", "-")
	require.Contains(t, stdout, "  image     "+fits+", declared in the Machine\n")
	requireNarrow(t, stdout)
}

// Images that differ in inner spaces look different in every output.
func TestExplainInnerSpaces(t *testing.T) {
	machine := head + "Machine\nmetadata: {name: a}\nspec: {host: {image: 'img  a', provisioningFormat: CloudInit}}"
	stdout, _, _ := in(t, machine, "explain", "-f", "-")
	require.Contains(t, stdout, "  image     img  a, declared in the Machine\n")
	stdout, _, _ = in(t, strings.Replace(machine, ", provisioningFormat: CloudInit", "", 1)+"\nstatus: {observedProvisioningFormat: Ignition}", "explain", "-f", "-")
	require.Contains(t, stdout, `"img  a"`)
}

// Control characters are quoted in every output.
func TestNothingRawForATerminal(t *testing.T) {
	const evil = `"\e[31mgone\u202e\a"`
	op := head + "MachineOperation\nmetadata: {name: swap}\nspec: {operationKind: HostReplace}\nstatus: {phase: " + evil + ", targets: [{machineRef: " + evil + ", phase: " + evil + ", input: {hostImage: " + evil + ", provisioningFormat: CloudInit}}, " +
		"{machineRef: a, input: {hostImage: " + evil + "}}, {machineRef: b, phase: Complete, input: {hostImage: " + evil + ", provisioningFormat: " + evil + "}}]}"
	machine := func(name string) string {
		return "\n---\n" + head + "Machine\nmetadata: {name: " + name + "}\nspec: {host: {image: img-a, provisioningFormat: " + evil + "}}"
	}
	cluster := newStub(t, op+machine("a")+machine("b"))
	stdout, _, _ := cluster.of(t, "explain", "mop/swap")
	require.Contains(t, stdout, `    frozen    "\x1b[31mgone\u202e\a", CloudInit`)
	requirePlain(t, stdout)
	for _, args := range [][]string{{"explain", "--all"}, {"explain", "--all", "-o", "wide"}, {"audit"}, {"audit", "-o", "wide"}} {
		stdout, stderr, _ := cluster.of(t, args...)
		requirePlain(t, stdout+stderr)
	}
	manifest := head + "Machine\nmetadata: {name: " + evil + "}\nspec: {host: {image: " + evil + ", provisioningFormat: CloudInit, " + evil + ": 1}}"
	for _, args := range [][]string{{"explain", "-f", "-"}, {"check", "-f", "-", "--with-crds"}, {"check", "-f", "-", "-o", "wide"}} {
		stdout, stderr, _ := in(t, manifest, args...)
		requirePlain(t, stdout+stderr)
	}
	stdout, _, _ = cluster.of(t, "explain", "mop/swap", "-o", "json")
	var e operationExplanation
	require.NoError(t, json.Unmarshal([]byte(stdout), &e))
	require.Equal(t, "\x1b[31mgone\u202e\a", e.Targets[0].Image, "machines get it as it is")
}

func requirePlain(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		require.True(t, r == '\n' || r >= ' ' && r != 0x7f && r != '\u202e', "%q", text)
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string][]string{
		"":                  {""},
		"one two three":     {"one two", "three"},
		"a  b c":            {"a  b c"},
		"four five  six":    {"four", "five  six"},
		"longerthanaline b": {"longerthanaline", "b"},
		" a":                {" a"},
		"a\tb\nc\x1b":       {`a\tb\nc\x1b`},
	} {
		require.Equal(t, want, wrap(text, 9), text)
	}
	var out bytes.Buffer
	writer{Writer: &out}.field("", "name", "a b", nil)
	require.Equal(t, "name      a b\n", out.String())
}
