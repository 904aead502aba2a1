package resolve

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
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
		reason Reason
		words  string
	}{
		"a Machine":       {v1alpha3.MachineOperationSpec{MachineRef: "a"}, 0, "", ""},
		"labels":          {v1alpha3.MachineOperationSpec{MachineSelector: labels}, 0, "", ""},
		"an hour":         {v1alpha3.MachineOperationSpec{MachineRef: "a"}, time.Hour, "", ""},
		"more":            {v1alpha3.MachineOperationSpec{MachineRef: "a"}, time.Hour + time.Second, TooOld, "not started within 1h0m0s"},
		"old and neither": {v1alpha3.MachineOperationSpec{}, 2 * time.Hour, TooOld, ""},
		"neither":         {v1alpha3.MachineOperationSpec{}, 0, InvalidSelection, "exactly one of"},
		"both":            {v1alpha3.MachineOperationSpec{MachineRef: "a", MachineSelector: labels}, 0, InvalidSelection, "exactly one of"},
		"the fleet":       {v1alpha3.MachineOperationSpec{MachineSelector: &metav1.LabelSelector{}}, 0, InvalidSelection, "every host of the fleet"},
		"no selector":     {v1alpha3.MachineOperationSpec{MachineSelector: wrong}, 0, InvalidSelection, "is not a label selector"},
	} {
		t.Run(name, func(t *testing.T) {
			fault := SelectionFault(operationAt(noon.Add(-test.age), test.spec), noon)
			require.Equal(t, test.reason, fault.Reason)
			require.Equal(t, test.reason == "", fault.Message == "")
			require.Contains(t, fault.Message, test.words)
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
		"lost its record": {"u-1", nil, "lost its record"},
		"a copy":          {"u-0", nil, "a copy of the operation with UID u-0"},
		"a whole copy":    {"u-0", targets, "a copy of the operation with UID u-0"},
	} {
		t.Run(name, func(t *testing.T) {
			op := operationAt(noon, v1alpha3.MachineOperationSpec{})
			op.Status.Targets = test.targets
			if test.started != "" {
				op.Annotations = map[string]string{StartedAnnotation: test.started}
			}
			fault := CopyFault(op)
			require.Equal(t, test.words != "", fault.Reason == RestoredCopy)
			require.Equal(t, test.words == "", fault.Message == "")
			require.Contains(t, fault.Message, test.words)
		})
	}
}

func TestNamesObject(t *testing.T) {
	for ref, want := range map[string]bool{"rack7-node-a": true, "a.b": true, "": false, "A": false, "A/../b": false, "..": false, "a b": false} {
		require.Equal(t, want, NamesObject(ref), ref)
	}
}

// candidate returns a Machine that was created before noon and has the pair.
func candidate(name string, format v1alpha3.ProvisioningFormat, changes ...func(*Candidate)) Candidate {
	machine := &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}}
	machine.Spec.Host = &v1alpha3.MachineHost{External: &v1alpha3.ExternalHost{Provider: "P", ProviderID: "bay-" + name}}
	c := Candidate{Machine: machine, Result: Result{Pair: Pair{Image: "img-a", Format: format}}}
	for _, change := range changes {
		change(&c)
	}
	return c
}

func TestBegin(t *testing.T) {
	createdAt := func(moment time.Time) func(*Candidate) {
		return func(c *Candidate) { c.Machine.CreationTimestamp = metav1.NewTime(moment) }
	}
	shared := func(c *Candidate) { c.Sharing = []string{c.Machine.Name, "z"} }
	unresolved := func(c *Candidate) { c.Fault = Fault{FormatNotDeclared, "must be declared"} }
	cloudInit, ignition := v1alpha3.CloudInit, v1alpha3.Ignition
	for name, test := range map[string]struct {
		candidates []Candidate
		reason     Reason
		words      string
		targets    []Reason
	}{
		"one":                   {[]Candidate{candidate("a", cloudInit)}, "", "", nil},
		"several":               {[]Candidate{candidate("a", cloudInit), candidate("b", cloudInit)}, "", "", nil},
		"of the same second":    {[]Candidate{candidate("a", cloudInit, createdAt(noon))}, "", "", nil},
		"newer":                 {[]Candidate{candidate("a", cloudInit), candidate("b", cloudInit, createdAt(noon.Add(time.Second)))}, MachineIsNewer, `Machine "b" was created after`, nil},
		"none":                  {nil, NothingSelected, "no Machine matches", nil},
		"shared":                {[]Candidate{candidate("a", cloudInit), candidate("b", cloudInit, shared)}, HostShared, `Machines "b" and "z" both name providerID "bay-b"`, nil},
		"shared by two of them": {[]Candidate{candidate("a", cloudInit), candidate("b", cloudInit, func(c *Candidate) { c.Machine.Spec.Host.External.ProviderID = "bay-a" })}, HostShared, `Machines "a" and "b" both name providerID "bay-a"`, nil},
		"not resolved":          {[]Candidate{candidate("a", cloudInit), candidate("b", "", unresolved)}, FormatNotDeclared, `Machine "b": must be declared`, nil},
		"shared, not resolved":  {[]Candidate{candidate("a", "", unresolved), candidate("b", cloudInit, shared)}, HostShared, "", nil},
		"newer, and shared":     {[]Candidate{candidate("a", cloudInit, shared), candidate("b", cloudInit, createdAt(noon.Add(time.Second)))}, MachineIsNewer, "", nil},
		"one Ignition":          {[]Candidate{candidate("a", ignition)}, IgnitionNotDeliverable, "the image boots with Ignition", []Reason{IgnitionNotDeliverable}},
		"an Ignition one":       {[]Candidate{candidate("a", cloudInit), candidate("b", ignition)}, IgnitionNotDeliverable, `Machine "b": the image boots with Ignition`, []Reason{Halted, IgnitionNotDeliverable}},
		"two Ignition ones":     {[]Candidate{candidate("a", ignition), candidate("b", ignition)}, IgnitionNotDeliverable, "no host was replaced", []Reason{IgnitionNotDeliverable, IgnitionNotDeliverable}},
		"Ignition, unresolved":  {[]Candidate{candidate("a", ignition), candidate("b", "", unresolved)}, FormatNotDeclared, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			labels := &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "7"}}
			op := operationAt(noon, v1alpha3.MachineOperationSpec{MachineSelector: labels})
			start := Begin(op, test.candidates, noon)
			require.Equal(t, test.reason, start.Fault.Reason)
			require.Contains(t, start.Fault.Message, test.words)
			var targets []Reason
			for _, fault := range start.Targets {
				targets = append(targets, fault.Reason)
				require.NotContains(t, fault.Message, "no host was replaced", "that is said of the operation")
			}
			require.Equal(t, test.targets, targets)
			op.CreationTimestamp = metav1.NewTime(noon.Add(-2 * time.Hour))
			require.Equal(t, TooOld, Begin(op, test.candidates, noon).Fault.Reason, "its age comes first")
		})
	}
}

func TestUnclaimedHosts(t *testing.T) {
	pinned := func(machine string, phase v1alpha3.OperationPhase) v1alpha3.OperationTarget {
		return v1alpha3.OperationTarget{MachineRef: machine, Phase: phase, Input: &v1alpha3.OperationInput{MachineUID: "u", Provider: "P", ProviderID: "bay-" + machine}}
	}
	accepted := pinned("x", v1alpha3.OperationInProgress)
	accepted.ProviderOperation = &v1alpha3.ProviderOperation{OperationID: "1"}
	added := v1alpha3.OperationTarget{MachineRef: "y"}
	self := Holder{"swap", "u-1"}
	for name, test := range map[string]struct {
		frozen  bool
		targets []v1alpha3.OperationTarget
		holder  Holder // of the last claim
		want    []string
	}{
		"frozen and claimed":        {true, []v1alpha3.OperationTarget{pinned("a", ""), pinned("b", "")}, self, nil},
		"frozen before claims":      {true, []v1alpha3.OperationTarget{pinned("a", ""), pinned("b", "")}, Holder{}, []string{"a", "b"}},
		"held by another":           {true, []v1alpha3.OperationTarget{pinned("a", "")}, Holder{"other", "u-2"}, []string{"a"}},
		"finished ones are settled": {true, []v1alpha3.OperationTarget{pinned("a", v1alpha3.OperationComplete), accepted, added, pinned("b", "")}, Holder{}, []string{"b"}},
		"legacy snapshots":          {false, []v1alpha3.OperationTarget{{MachineRef: "a"}, {MachineRef: "gone"}, {MachineRef: "b"}}, self, []string{"a", "b"}},
		"nothing left":              {true, []v1alpha3.OperationTarget{accepted}, Holder{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			op := operationAt(noon, v1alpha3.MachineOperationSpec{})
			op.Name, op.Status.Targets = self.Name, test.targets
			if test.frozen {
				op.Status.Conditions = []metav1.Condition{{Type: v1alpha3.ConditionFrozen, Status: metav1.ConditionTrue}}
			}
			hosts, err := UnclaimedHosts(op, func(name string) (*v1alpha3.Machine, error) {
				require.False(t, test.frozen, "pinned hosts need no Machine")
				if name == "gone" {
					return nil, nil
				}
				return candidate(name, v1alpha3.CloudInit).Machine, nil
			}, func(Host) (Claim, error) { return Claim{Holder: test.holder}, nil })
			require.NoError(t, err)
			var names []string
			for _, host := range hosts {
				names = append(names, host.Machine)
				require.Equal(t, "bay-"+host.Machine, host.ProviderID)
			}
			require.Equal(t, test.want, names)
		})
	}
}
