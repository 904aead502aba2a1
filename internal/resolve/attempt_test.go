package resolve

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

func TestPinFault(t *testing.T) {
	machine := func(uid, provider, id string) *v1alpha3.Machine {
		m := &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
		m.Spec.Host = &v1alpha3.MachineHost{External: &v1alpha3.ExternalHost{Provider: provider, ProviderID: id}}
		return m
	}
	deleting := machine("u-1", "p", "c-1")
	deleting.DeletionTimestamp = &metav1.Time{}
	pinned := v1alpha3.OperationInput{MachineUID: "u-1", Provider: "p", ProviderID: "c-1"}
	pinsNothing := v1alpha3.OperationInput{HostImage: "img-a"}
	for name, test := range map[string]struct {
		input   v1alpha3.OperationInput
		machine *v1alpha3.Machine
		reason  Reason
		words   string
	}{
		"the same":              {pinned, machine("u-1", "p", "c-1"), "", ""},
		"gone":                  {pinned, nil, MachineNotFound, "does not exist any more"},
		"going":                 {pinned, deleting, MachineDeleting, "is being deleted"},
		"another Machine":       {pinned, machine("u-2", "p", "c-1"), MachineReplaced, "with UID u-1, and this one has u-2"},
		"another provider":      {pinned, machine("u-1", "q", "c-1"), ProviderChanged, `for provider "p", and the Machine now says "q"`},
		"another chassis":       {pinned, machine("u-1", "p", "c-2"), ProviderChanged, `for providerID "c-1", and the Machine now says "c-2"`},
		"no chassis":            {pinned, machine("u-1", "p", ""), ProviderChanged, `now says ""`},
		"no provider at all":    {pinned, &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{UID: "u-1"}}, ProviderChanged, `now says ""`},
		"nothing pinned":        {pinsNothing, machine("u-2", "q", ""), "", ""},
		"nothing pinned, going": {pinsNothing, deleting, MachineDeleting, "is being deleted"},
		"nothing pinned, gone":  {pinsNothing, nil, MachineNotFound, "does not exist any more"},
	} {
		t.Run(name, func(t *testing.T) {
			fault := pinFault(test.input, test.machine)
			require.Equal(t, test.reason, fault.Reason)
			require.Equal(t, test.reason == "", fault.Message == "")
			require.Contains(t, fault.Message, test.words)
		})
	}
}

func TestDuplicateTargets(t *testing.T) {
	op := &v1alpha3.MachineOperation{}
	var want []Reason
	for _, test := range []struct {
		machine string
		phase   v1alpha3.OperationPhase
		reason  Reason
	}{
		{"a", v1alpha3.OperationComplete, ""}, {"b", "", ""}, {"a", "", DuplicateTarget},
		{"a", v1alpha3.OperationFailed, ""}, {"b", v1alpha3.OperationInProgress, DuplicateTarget}, {"c", "", ""},
	} {
		op.Status.Targets = append(op.Status.Targets, v1alpha3.OperationTarget{MachineRef: test.machine, Phase: test.phase})
		want = append(want, test.reason)
	}
	var got []Reason
	for _, fault := range TargetFaults(op) {
		got = append(got, fault.Reason)
		require.Equal(t, fault.Reason == "", fault.Message == "")
	}
	require.Equal(t, want, got)
}

func TestTargetMismatch(t *testing.T) {
	pinned := v1alpha3.OperationTarget{MachineRef: "m-1", Input: &v1alpha3.OperationInput{MachineUID: "u", Provider: "P"}}
	frozen := []metav1.Condition{{Type: v1alpha3.ConditionFrozen, Status: metav1.ConditionTrue}}
	for name, test := range map[string]struct {
		machineRef string
		conditions []metav1.Condition
		target     v1alpha3.OperationTarget
		words      string
	}{
		"ours":                         {"m-1", frozen, pinned, ""},
		"selected":                     {"", frozen, pinned, ""},
		"a legacy snapshot":            {"m-1", nil, v1alpha3.OperationTarget{MachineRef: "m-1"}, ""},
		"another Machine":              {"m-2", frozen, pinned, `spec.machineRef names Machine "m-2"`},
		"another one, before the pins": {"m-2", nil, v1alpha3.OperationTarget{MachineRef: "m-1"}, `spec.machineRef names Machine "m-2"`},
		"no input":                     {"", frozen, v1alpha3.OperationTarget{MachineRef: "m-1"}, "this one lacks them"},
		"no UID":                       {"", frozen, v1alpha3.OperationTarget{MachineRef: "m-1", Input: &v1alpha3.OperationInput{Provider: "P"}}, "this one lacks them"},
		"no provider":                  {"", frozen, v1alpha3.OperationTarget{MachineRef: "m-1", Input: &v1alpha3.OperationInput{MachineUID: "u"}}, "this one lacks them"},
	} {
		op := &v1alpha3.MachineOperation{Spec: v1alpha3.MachineOperationSpec{MachineRef: test.machineRef}, Status: v1alpha3.MachineOperationStatus{Conditions: test.conditions}}
		op.Status.Targets = []v1alpha3.OperationTarget{test.target}
		fault := TargetFaults(op)[0]
		require.Equal(t, map[bool]Reason{true: "", false: TargetMismatch}[test.words == ""], fault.Reason, name)
		require.Contains(t, fault.Message, test.words, name)
		op.Status.Targets[0].ProviderOperation = &v1alpha3.ProviderOperation{OperationID: "1"}
		require.Empty(t, TargetFaults(op)[0], name+": what was accepted is followed up")
	}
}

func TestPaceOf(t *testing.T) {
	failed := v1alpha3.OperationTarget{MachineRef: "m-1", Phase: v1alpha3.OperationFailed, Message: "it does not boot"}
	complete := v1alpha3.OperationTarget{Phase: v1alpha3.OperationComplete, Attempts: 1}
	running := v1alpha3.OperationTarget{Phase: v1alpha3.OperationInProgress, Attempts: 1}
	added := v1alpha3.OperationTarget{MachineRef: "m-0", Phase: v1alpha3.OperationFailed, Stage: string(DuplicateTarget)}
	mismatch := v1alpha3.OperationTarget{MachineRef: "m-0", Phase: v1alpha3.OperationFailed, Stage: string(TargetMismatch)}
	targets := []v1alpha3.OperationTarget{complete, added, mismatch, failed, failed, running, {}}
	for most, halted := range map[int]bool{1: true, 2: true, 3: false} {
		pace := PaceOf(map[string]string{"maxInFlight": "5", "maxFailures": fmt.Sprint(most)}, targets)
		require.Equal(t, 4, pace.Room, "one is under way")
		require.False(t, pace.Paused)
		want := Fault{}
		if halted {
			want = Fault{Halted, fmt.Sprintf(`not replaced: Machine "m-1" failed (it does not boot), and no further host is begun once %d failed (spec.parameters.maxFailures)`, most)}
		}
		require.Equal(t, want, pace.Halted, most)
	}
	require.True(t, PaceOf(map[string]string{"pause": "true"}, targets).Paused)
	require.True(t, PaceOf(map[string]string{"maxInFlight": "many"}, targets).Paused, "nothing begins until it is corrected")
}

func TestRecordFault(t *testing.T) {
	halted := Fault{Halted, "too many failed"}
	ignition := v1alpha3.OperationTarget{Input: &v1alpha3.OperationInput{HostImage: "img-a", ProvisioningFormat: v1alpha3.Ignition}}
	legacy := v1alpha3.OperationTarget{Input: &v1alpha3.OperationInput{HostImage: "img-a"}}
	begun := v1alpha3.OperationTarget{Attempts: 1}
	for name, test := range map[string]struct {
		pace   Pace
		target v1alpha3.OperationTarget
		want   Reason
	}{
		"may begin":             {Pace{Room: 1}, legacy, ""},
		"halted":                {Pace{Halted: halted}, legacy, Halted},
		"halted, has begun":     {Pace{Halted: halted}, begun, ""},
		"halted while paused":   {Pace{Halted: halted, Paused: true}, legacy, ""},
		"cannot be delivered":   {Pace{Room: 1}, ignition, IgnitionNotDeliverable},
		"halted, undeliverable": {Pace{Halted: halted}, ignition, Halted},
	} {
		require.Equal(t, test.want, test.pace.RecordFault(test.target).Reason, name)
	}
}

func TestCallOf(t *testing.T) {
	self := Holder{"swap", "u-1"}
	machine := candidate("a", "").Machine
	machine.UID = "m-uid"
	deleting := machine.DeepCopy()
	deleting.DeletionTimestamp = &metav1.Time{}
	observed := machine.DeepCopy()
	observed.Status.ObservedProvisioningFormat = v1alpha3.Ignition
	declared := machine.DeepCopy()
	declared.Spec.Host.ProvisioningFormat = v1alpha3.Ignition
	frozen := &v1alpha3.OperationInput{HostImage: " img-a ", ProvisioningFormat: v1alpha3.CloudInit, MachineUID: "m-uid", Provider: "P", ProviderID: "bay-a"}
	legacy := &v1alpha3.OperationInput{HostImage: "img-a"}
	weird := &v1alpha3.OperationInput{HostImage: "img-a", ProvisioningFormat: "weird"}
	serves := func(name string) func(string) bool { return func(provider string) bool { return provider == name } }
	for name, test := range map[string]struct {
		input   *v1alpha3.OperationInput
		facts   Facts
		reason  Reason
		words   string
		legacy  bool
		decided v1alpha3.ProvisioningFormat
	}{
		"frozen":                 {frozen, Facts{Machine: machine, Claim: &Claim{Holder: self}, Serves: serves("P")}, "", "", false, v1alpha3.CloudInit},
		"nothing else known":     {frozen, Facts{Machine: machine}, "", "", false, v1alpha3.CloudInit},
		"gone":                   {frozen, Facts{}, MachineNotFound, "does not exist", false, ""},
		"being deleted":          {frozen, Facts{Machine: deleting}, MachineDeleting, "", false, ""},
		"not registered":         {frozen, Facts{Machine: machine, Serves: serves("Q")}, ProviderChanged, `provider "P" is not registered here`, false, ""},
		"claim lost":             {frozen, Facts{Machine: machine, Claim: &Claim{}}, ClaimLost, "was removed", false, v1alpha3.CloudInit},
		"not legal":              {weird, Facts{Machine: machine}, InvalidPair, `"weird"`, false, "weird"},
		"legacy":                 {legacy, Facts{Machine: machine}, "", "", true, v1alpha3.CloudInit},
		"legacy, no input":       {nil, Facts{Machine: machine}, "", "", true, v1alpha3.CloudInit},
		"legacy, not declared":   {legacy, Facts{Machine: observed}, NotResolved, "must be declared", true, ""},
		"legacy, undeliverable":  {legacy, Facts{Machine: declared}, IgnitionNotDeliverable, "", true, v1alpha3.Ignition},
		"pins come before claim": {frozen, Facts{Machine: deleting, Claim: &Claim{}}, MachineDeleting, "", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			call, fault := CallOf(self, v1alpha3.OperationTarget{MachineRef: "a", Input: test.input}, test.facts)
			require.Equal(t, test.reason, fault.Reason)
			require.Contains(t, fault.Message, test.words)
			require.Equal(t, test.legacy, call.Legacy)
			require.Equal(t, test.decided, call.Result.Format)
			if test.decided != "" {
				require.Equal(t, map[bool]string{true: "", false: "img-a"}[test.input == nil], call.Result.Image)
				require.Equal(t, "bay-a", call.Host.ProviderID)
			}
		})
	}
}

func TestMachineFault(t *testing.T) {
	deleting := func(c *Candidate) { c.Machine.DeletionTimestamp = &metav1.Time{} }
	shared := func(c *Candidate) { c.Sharing = []string{"z"} }
	unresolved := func(c *Candidate) { c.Fault = Fault{FormatNotDeclared, "must be declared"} }
	for name, test := range map[string]struct {
		candidate Candidate
		reason    Reason
	}{
		"fine":                 {candidate("a", v1alpha3.CloudInit), ""},
		"undeliverable":        {candidate("a", v1alpha3.Ignition), IgnitionNotDeliverable},
		"being deleted":        {candidate("a", v1alpha3.CloudInit, deleting), MachineDeleting},
		"Ignition, deleted":    {candidate("a", v1alpha3.Ignition, deleting), IgnitionNotDeliverable},
		"unresolved":           {candidate("a", "", unresolved), FormatNotDeclared},
		"unresolved, deleting": {candidate("a", "", unresolved, deleting), FormatNotDeclared},
		"shared":               {candidate("a", v1alpha3.Ignition, shared), HostShared},
	} {
		require.Equal(t, test.reason, MachineFault(test.candidate).Reason, name)
	}
	require.Equal(t, "the image boots with Ignition, and this controller generates cloud-init only; the operation would fail before the provider is called",
		MachineFault(candidate("a", v1alpha3.Ignition)).Message)
}

func TestDifferences(t *testing.T) {
	machine := candidate("a", "").Machine
	machine.UID = "m-uid"
	input := v1alpha3.OperationInput{MachineUID: "m-uid", Provider: "P", ProviderID: "bay-a"}
	pair := Pair{"img-a", v1alpha3.CloudInit}
	for name, test := range map[string]struct {
		change      func(*v1alpha3.OperationInput)
		frozen, now Pair
		want        []string
	}{
		"none":              {func(*v1alpha3.OperationInput) {}, pair, pair, []string{}},
		"pair":              {func(*v1alpha3.OperationInput) {}, pair, Pair{"img-b", v1alpha3.Ignition}, []string{"format", "image"}},
		"without a format":  {func(*v1alpha3.OperationInput) {}, Pair{Image: "img-a"}, pair, []string{}},
		"pins":              {func(i *v1alpha3.OperationInput) { i.MachineUID, i.Provider, i.ProviderID = "u", "Q", "bay-b" }, pair, pair, []string{"machineUID", "provider", "providerID"}},
		"nothing is pinned": {func(i *v1alpha3.OperationInput) { *i = v1alpha3.OperationInput{} }, pair, pair, []string{}},
	} {
		changed := input
		test.change(&changed)
		require.Equal(t, test.want, Differences(v1alpha3.OperationTarget{Input: &changed}, test.frozen, machine, test.now), name)
	}
}
