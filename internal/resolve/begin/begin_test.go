package begin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func operationAt(created time.Time, spec v1alpha3.MachineOperationSpec) *v1alpha3.MachineOperation {
	return &v1alpha3.MachineOperation{ObjectMeta: metav1.ObjectMeta{UID: "u-1", CreationTimestamp: metav1.NewTime(created)}, Spec: spec}
}

func TestSelectionFault(t *testing.T) {
	labels := &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "7"}}
	wrong := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: "Like"}}}
	for name, test := range map[string]struct {
		spec   v1alpha3.MachineOperationSpec
		age    time.Duration
		reason resolve.Reason
		words  string
	}{
		"a Machine":       {v1alpha3.MachineOperationSpec{MachineRef: "a"}, 0, "", ""},
		"labels":          {v1alpha3.MachineOperationSpec{MachineSelector: labels}, 0, "", ""},
		"an hour":         {v1alpha3.MachineOperationSpec{MachineRef: "a"}, time.Hour, "", ""},
		"more":            {v1alpha3.MachineOperationSpec{MachineRef: "a"}, time.Hour + time.Second, TooOld, "older than 1h0m0s"},
		"old and neither": {v1alpha3.MachineOperationSpec{}, 2 * time.Hour, TooOld, ""},
		"neither":         {v1alpha3.MachineOperationSpec{}, 0, InvalidSelection, "exactly one of"},
		"both":            {v1alpha3.MachineOperationSpec{MachineRef: "a", MachineSelector: labels}, 0, InvalidSelection, "exactly one of"},
		"the fleet":       {v1alpha3.MachineOperationSpec{MachineSelector: &metav1.LabelSelector{}}, 0, InvalidSelection, "every host of the fleet"},
		"no selector":     {v1alpha3.MachineOperationSpec{MachineSelector: wrong}, 0, InvalidSelection, "is not a label selector"},
	} {
		t.Run(name, func(t *testing.T) {
			reason, message := SelectionFault(operationAt(noon.Add(-test.age), test.spec), noon)
			require.Equal(t, test.reason, reason)
			require.Equal(t, test.reason == "", message == "")
			require.Contains(t, message, test.words)
		})
	}
}

func TestMachinesFault(t *testing.T) {
	machine := func(name string, age time.Duration) v1alpha3.Machine {
		return v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-age))}}
	}
	for name, test := range map[string]struct {
		machines []v1alpha3.Machine
		reason   resolve.Reason
		words    string
	}{
		"older":           {[]v1alpha3.Machine{machine("a", time.Hour)}, "", ""},
		"the same second": {[]v1alpha3.Machine{machine("a", 0)}, "", ""},
		"newer":           {[]v1alpha3.Machine{machine("a", time.Hour), machine("b", -time.Second)}, MachineIsNewer, `Machine "b" was created after`},
		"none":            {nil, NothingSelected, "no Machine matches"},
	} {
		t.Run(name, func(t *testing.T) {
			reason, message := MachinesFault(operationAt(noon, v1alpha3.MachineOperationSpec{}), test.machines)
			require.Equal(t, test.reason, reason)
			require.Contains(t, message, test.words)
		})
	}
}

func TestCopyFault(t *testing.T) {
	targets := []v1alpha3.OperationTarget{{MachineRef: "a"}}
	for name, test := range map[string]struct {
		started string // empty: it is not marked
		targets []v1alpha3.OperationTarget
		words   string // empty: no fault
	}{
		"new":             {"", nil, ""},
		"frozen":          {"", targets, ""},
		"begun":           {"u-1", targets, ""},
		"lost its record": {"u-1", nil, "has lost its record"},
		"a copy":          {"u-0", nil, "a copy of the operation with UID u-0"},
		"a whole copy":    {"u-0", targets, "a copy of the operation with UID u-0"},
	} {
		t.Run(name, func(t *testing.T) {
			op := operationAt(noon, v1alpha3.MachineOperationSpec{})
			op.Status.Targets = test.targets
			if test.started != "" {
				op.Annotations = map[string]string{StartedAnnotation: test.started}
			}
			reason, message := CopyFault(op)
			require.Equal(t, test.words != "", reason == RestoredCopy)
			require.Equal(t, test.words == "", message == "")
			require.Contains(t, message, test.words)
		})
	}
}

func TestDuplicateFault(t *testing.T) {
	seen := map[string]bool{}
	for i, test := range []struct {
		machine string
		phase   v1alpha3.OperationPhase
		reason  resolve.Reason
	}{
		{"a", v1alpha3.OperationComplete, ""}, {"b", "", ""}, {"a", "", DuplicateTarget},
		{"a", v1alpha3.OperationFailed, ""}, {"b", v1alpha3.OperationInProgress, DuplicateTarget}, {"c", "", ""},
	} {
		reason, message := DuplicateFault(seen, v1alpha3.OperationTarget{MachineRef: test.machine, Phase: test.phase})
		require.Equal(t, test.reason, reason, i)
		require.Equal(t, test.reason == "", message == "")
	}
}

func TestNamesObject(t *testing.T) {
	for ref, want := range map[string]bool{"rack7-node-a": true, "a.b": true, "": false, "A": false, "A/../b": false, "..": false, "a b": false} {
		require.Equal(t, want, NamesObject(ref), ref)
	}
}
