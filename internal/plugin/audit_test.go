package plugin

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// On a terminal, which shows both streams, findings have their own lines, and the
// progress line stays below them until the end.
func TestAuditOnATerminal(t *testing.T) {
	const machine = head + "Machine\nmetadata: {name: rack7-node-a}\nspec: {host: {image: ' a'}}"
	server := httptest.NewServer(newStub(t, machine+"\n---\n"+strings.ReplaceAll(machine, "-a}", "-b}")))
	defer server.Close()
	streams, _, plain, _ := genericiooptions.NewTestIOStreams()
	require.Equal(t, exitFindings, Run(t.Context(), []string{"audit", "--server=" + server.URL}, streams))

	var terminal screen
	streams.Out, streams.ErrOut = &terminal, &terminal
	require.Equal(t, exitFindings, Run(t.Context(), []string{"audit", "--progress", "--server=" + server.URL}, streams))
	require.Equal(t, plain.String(), terminal.String(), "nothing is left of it at the end")
	require.GreaterOrEqual(t, len(terminal.passing), 2, "it is drawn again below findings")
	for _, line := range terminal.passing {
		require.Regexp(t, `^machines: \d of 2 read, \d findings$`, line)
	}
}

// screen is a terminal that interprets two control characters.
type screen struct {
	lines   []string // complete ones
	line    []byte   // the line of the cursor
	column  int
	passing []string // what a line held before it was overwritten
}

func (s *screen) Write(text []byte) (int, error) {
	for _, b := range text {
		switch b {
		case '\r':
			if line := strings.TrimRight(string(s.line), " "); line != "" && s.column > 0 {
				s.passing = append(s.passing, line)
			}
			s.column = 0
		case '\n':
			s.lines = append(s.lines, strings.TrimRight(string(s.line), " ")+"\n")
			s.line, s.column = nil, 0
		default:
			s.line = append(s.line[:s.column], append([]byte{b}, s.line[min(s.column+1, len(s.line)):]...)...)
			s.column++
		}
	}
	return len(text), nil
}

func (s *screen) String() string {
	return strings.Join(s.lines, "") + string(bytes.TrimRight(s.line, " "))
}

// Frozen and begun operations that may not change are no finding: nothing is wrong
// with them.
func TestAuditOfWhatHasBegun(t *testing.T) {
	const frozen = "conditions: [{type: Frozen, status: 'True'}], targets: [{machineRef: a, phase: Complete, input: {hostImage: img-a, provisioningFormat: CloudInit}}, {machineRef: b, phase: Complete, input: {provisioningFormat: CloudInit}}]}"
	for _, object := range []string{
		"spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '7'}}}\nstatus: {phase: Complete, " + frozen,
		"spec: {operationKind: HostReplace, machineRef: a}\nstatus: {phase: InProgress, " + frozen,
		"spec: {operationKind: HostReboot, machineRef: a}\nstatus: {phase: Failed}",
	} {
		stdout, _, code := newStub(t, head+"MachineOperation\nmetadata: {name: swap}\n"+object).of(t, "audit")
		require.Equal(t, 0, code, stdout)
		require.Equal(t, "1 object, 0 findings\n", stdout)
	}
}
