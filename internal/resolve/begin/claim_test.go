package begin

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// One host has one claim, whichever Machine names it, and no two hosts share one.
func TestClaimName(t *testing.T) {
	bay := Host{Machine: "a", UID: "u-1", Provider: "P", ProviderID: "bay-1"}
	same := bay
	same.Machine, same.UID = "b", "u-2"
	require.Equal(t, bay.ClaimName(), same.ClaimName())
	names := map[string]Host{}
	for _, host := range []Host{bay,
		{UID: "u-1", Provider: "P", ProviderID: "bay-2"}, {UID: "u-1", Provider: "Q", ProviderID: "bay-1"},
		{UID: "u-1", Provider: "P"}, {UID: "u-2", Provider: "P"}, {UID: "bay-1", Provider: "P"},
		{UID: "u-1", Provider: "Pb", ProviderID: "ay-1"},
	} {
		name := host.ClaimName()
		require.NotContains(t, names, name)
		require.True(t, NamesObject(name), name)
		names[name] = host
	}
}

// A claim is read back as it was written, and odd text is nobody's.
func TestReadClaim(t *testing.T) {
	require.Equal(t, Claim{}, ReadClaim(nil))
	want := Claim{Holder{"swap-1", "u-9"}, 7, []Holder{{"swap-0", "u-8"}, {"a", "u-1"}}}
	text := want.Holder.String()
	lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &text, LeaseTransitions: &want.Fence}}
	lease.Annotations = map[string]string{HistoryAnnotation: want.HistoryText()}
	require.Equal(t, want, ReadClaim(lease))
	odd := "somebody"
	require.Equal(t, Claim{Holder: Holder{Name: "somebody"}}, ReadClaim(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &odd}}))
}

func TestNameFault(t *testing.T) {
	claim := Claim{Holder: Holder{"swap-2", "u-2"}, History: []Holder{{"swap-1", "u-1"}}}
	for name, test := range map[string]struct {
		op   Holder
		used string // the UID that used the name
	}{
		"a new name":                        {Holder{"swap-3", "u-3"}, ""},
		"its own":                           {Holder{"swap-2", "u-2"}, ""},
		"its own, in the history":           {Holder{"swap-1", "u-1"}, ""},
		"the name of the holder":            {Holder{"swap-2", "u-3"}, "u-2"},
		"the name of one in the history":    {Holder{"swap-1", "u-3"}, "u-1"},
		"a name that begins like the other": {Holder{"swap", "u-3"}, ""},
	} {
		reason, message := claim.NameFault(test.op, "worker-1")
		if test.used == "" {
			require.Empty(t, reason, name)
			continue
		}
		require.Equal(t, NameUsed, reason, name)
		require.Equal(t, fmt.Sprintf(`another MachineOperation %q, with UID %s, has claimed the host of Machine "worker-1" before, and a name replaces a host once; to replace it again, create an operation with another name, for example with metadata.generateName`, test.op.Name, test.used), message)
	}
}

// A name that is refused again and again stays in the history, however many
// others replace the host in between; the longest unused name is forgotten.
func TestHistory(t *testing.T) {
	claim := Claim{}.TakenBy(Holder{"gitops", "u-0"})
	require.Equal(t, Claim{Holder: Holder{"gitops", "u-0"}, Fence: 1}, claim)
	for i := range 200 {
		claim = claim.TakenBy(Holder{fmt.Sprintf("swap-%d", i), "u"})
		reason, _ := claim.NameFault(Holder{"gitops", "u-1"}, "m")
		require.Equal(t, NameUsed, reason, i)
		var changed bool
		claim, changed = claim.Remembering("gitops")
		require.Equal(t, i > 0, changed)
		require.Equal(t, Holder{"gitops", "u-0"}, claim.History[0], "with the UID of the first")
	}
	require.EqualValues(t, 201, claim.Fence)
	require.Len(t, claim.History, 64)
	require.Equal(t, "swap-198", claim.History[1].Name)
	require.Less(t, len(claim.HistoryText()), 20<<10)

	before := claim
	again, changed := claim.Remembering("never seen")
	require.False(t, changed)
	require.Equal(t, before, again)

	claim.Holder = Holder{} // given back
	require.Equal(t, before.History, claim.TakenBy(Holder{"next", "u"}).History, "nobody is entered")
}

func TestHistoryOfLongNames(t *testing.T) {
	claim := Claim{}
	for i := range 100 {
		claim = claim.TakenBy(Holder{fmt.Sprintf("%s-%d", strings.Repeat("n", 245), i), "11111111-2222-3333-4444-555555555555"})
	}
	require.Less(t, len(claim.HistoryText()), 64<<10, "annotations may take 256 KiB together")
}

func TestSharedFault(t *testing.T) {
	host := Host{Machine: "m-2", Provider: "P", ProviderID: "bay-1"}
	for _, none := range [][]string{nil, {"m-2"}} {
		reason, _ := SharedFault(host, none)
		require.Empty(t, reason)
	}
	reason, message := SharedFault(host, []string{"m-2", "m-1"})
	require.Equal(t, HostShared, reason)
	require.Equal(t, `Machines "m-1" and "m-2" both name providerID "bay-1" of provider "P"; correct the wrong one, then create a new operation`, message)
}

func TestActive(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	made := func(age time.Duration, change func(*v1alpha3.MachineOperation)) *v1alpha3.MachineOperation {
		op := &v1alpha3.MachineOperation{ObjectMeta: metav1.ObjectMeta{Name: "swap", UID: "u-1", CreationTimestamp: metav1.NewTime(now.Add(-age))}}
		change(op)
		return op
	}
	for name, test := range map[string]struct {
		stored *v1alpha3.MachineOperation
		want   bool
	}{
		"new":                         {made(0, func(*v1alpha3.MachineOperation) {}), true},
		"not started within the hour": {made(time.Hour+1, func(*v1alpha3.MachineOperation) {}), false},
		"started long ago": {made(300*time.Hour, func(op *v1alpha3.MachineOperation) {
			op.Status.Targets = []v1alpha3.OperationTarget{{MachineRef: "m"}}
		}), true},
		"complete":      {made(0, func(op *v1alpha3.MachineOperation) { op.Status.Phase = v1alpha3.OperationComplete }), false},
		"failed":        {made(0, func(op *v1alpha3.MachineOperation) { op.Status.Phase = v1alpha3.OperationFailed }), false},
		"being deleted": {made(0, func(op *v1alpha3.MachineOperation) { op.DeletionTimestamp = &metav1.Time{Time: now} }), false},
		"a namesake":    {made(0, func(op *v1alpha3.MachineOperation) { op.UID = "u-2" }), false},
		"gone":          {nil, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, Holder{"swap", "u-1"}.Active(test.stored, now)) })
	}
}

func TestTargetFault(t *testing.T) {
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
		reason, message := TargetFault(op, test.target)
		require.Equal(t, map[bool]resolve.Reason{true: "", false: TargetMismatch}[test.words == ""], reason, name)
		require.Contains(t, message, test.words, name)
	}
}

func TestReadParameters(t *testing.T) {
	for name, test := range map[string]struct {
		raw   map[string]string
		want  Parameters
		fault string
	}{
		"none":               {nil, Parameters{1, 1, false}, ""},
		"all":                {map[string]string{"maxInFlight": "5", "maxFailures": "6000", "pause": "true"}, Parameters{5, 6000, true}, ""},
		"not paused":         {map[string]string{"pause": "false"}, Parameters{1, 1, false}, ""},
		"those of others":    {map[string]string{"grace": "x"}, Parameters{1, 1, false}, ""},
		"zero":               {map[string]string{"maxInFlight": "0"}, Parameters{}, `spec.parameters.maxInFlight: "0" must be a whole number from 1 to 6000`},
		"below zero":         {map[string]string{"maxFailures": "-1"}, Parameters{}, `spec.parameters.maxFailures: "-1" must be a whole number from 1 to 6000`},
		"too many":           {map[string]string{"maxFailures": "6001"}, Parameters{}, `"6001" must be`},
		"an empty number":    {map[string]string{"maxInFlight": ""}, Parameters{}, `"" must be a whole number`},
		"a share":            {map[string]string{"maxInFlight": "10%"}, Parameters{}, `"10%" must be a whole number`},
		"with a space":       {map[string]string{"maxInFlight": " 2"}, Parameters{}, `" 2" must be a whole number`},
		"pause in other way": {map[string]string{"pause": "yes"}, Parameters{}, `spec.parameters.pause: "yes" must be "true" or "false"`},
		"an empty pause":     {map[string]string{"pause": ""}, Parameters{}, `spec.parameters.pause: "" must be "true" or "false"`},
	} {
		got, fault := ReadParameters(test.raw)
		if test.fault == "" {
			require.Empty(t, fault, name)
			require.Equal(t, test.want, got, name)
			continue
		}
		require.Contains(t, fault, test.fault, name)
	}
}

func TestHaltFault(t *testing.T) {
	failed := v1alpha3.OperationTarget{MachineRef: "m-1", Phase: v1alpha3.OperationFailed, Message: "it does not boot"}
	complete := v1alpha3.OperationTarget{Phase: v1alpha3.OperationComplete, Attempts: 1}
	running := v1alpha3.OperationTarget{Phase: v1alpha3.OperationInProgress, Attempts: 1}
	added := v1alpha3.OperationTarget{MachineRef: "m-0", Phase: v1alpha3.OperationFailed, Stage: string(DuplicateTarget)}
	mismatch := v1alpha3.OperationTarget{MachineRef: "m-0", Phase: v1alpha3.OperationFailed, Stage: string(TargetMismatch)}
	targets := []v1alpha3.OperationTarget{complete, added, mismatch, failed, failed, running, {}}
	for most, halted := range map[int]bool{1: true, 2: true, 3: false} {
		reason, message := HaltFault(targets, Parameters{MaxFailures: most})
		require.Equal(t, halted, reason == Halted, most)
		if halted {
			require.Equal(t, fmt.Sprintf(`not replaced: Machine "m-1" failed (it does not boot), and no further host is begun once %d failed (spec.parameters.maxFailures)`, most), message)
		}
	}
	require.Equal(t, 1, InFlight(targets))
}

func TestTakeFault(t *testing.T) {
	self, other, namesake := Holder{"swap", "u-1"}, Holder{"other", "u-2"}, Holder{"swap", "u-0"}
	for name, test := range map[string]struct {
		claim  Claim
		active bool
		reason resolve.Reason
		words  string
	}{
		"nobody":              {Claim{}, true, "", ""},
		"given back":          {Claim{Fence: 3}, true, "", ""},
		"itself":              {Claim{Holder: self}, true, "", ""},
		"active":              {Claim{Holder: other}, true, OtherOperation, `MachineOperation "other" is replacing the host of Machine "a"`},
		"inactive":            {Claim{Holder: other}, false, "", ""},
		"namesake":            {Claim{Holder: namesake}, false, NameUsed, "with UID u-0"},
		"active namesake":     {Claim{Holder: namesake}, true, NameUsed, "with UID u-0"},
		"history":             {Claim{History: []Holder{other, namesake}}, true, NameUsed, "a name replaces a host once"},
		"history, and active": {Claim{Holder: other, History: []Holder{namesake}}, true, NameUsed, ""},
		"itself in history":   {Claim{History: []Holder{self}}, true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			reason, message, err := test.claim.TakeFault(self, "a", func(holder Holder) (bool, error) {
				require.Equal(t, other, holder, "nobody else decides")
				return test.active, nil
			})
			require.NoError(t, err)
			require.Equal(t, test.reason, reason)
			require.Equal(t, test.reason == "", message == "")
			require.Contains(t, message, test.words)
		})
	}
	_, _, err := Claim{Holder: other}.TakeFault(self, "a", func(Holder) (bool, error) { return false, errors.New("unreachable") })
	require.EqualError(t, err, "unreachable")
}

func TestHoldFault(t *testing.T) {
	self, other, host := Holder{"swap", "u-1"}, Holder{"other", "u-2"}, Host{Machine: "a", UID: "m-1"}
	for name, test := range map[string]struct {
		claim Claim
		words string
	}{
		"held":     {Claim{Holder: self}, ""},
		"removed":  {Claim{}, "the claim of the operation on the host was removed (Lease " + host.ClaimName() + ")"},
		"other":    {Claim{Holder: other}, `MachineOperation "other" has claimed the host meanwhile (Lease ` + host.ClaimName() + ")"},
		"namesake": {Claim{Holder: Holder{"swap", "u-0"}}, `MachineOperation "swap" has claimed`},
	} {
		t.Run(name, func(t *testing.T) {
			reason, message := test.claim.HoldFault(self, host)
			require.Equal(t, test.words == "", reason == "")
			require.Contains(t, message, test.words)
		})
	}
}

func TestUndeliverableFault(t *testing.T) {
	ignition := resolve.Pair{Image: "img-a", Format: v1alpha3.Ignition}
	reason, message := UndeliverableFault("a", resolve.Pair{Image: "img-a", Format: v1alpha3.CloudInit}, 2)
	require.Empty(t, reason)
	require.Empty(t, message)
	reason, message = UndeliverableFault("a", ignition, 1)
	require.Equal(t, resolve.IgnitionNotDeliverable, reason)
	require.NotContains(t, message, `Machine "a"`, "the operation names it")
	_, message = UndeliverableFault("a", ignition, 2)
	require.Contains(t, message, `Machine "a": the image boots with Ignition`)
	require.Contains(t, message, "no host was replaced")
	reason, message = SparedFault("a")
	require.Equal(t, Halted, reason)
	require.Contains(t, message, `the pair of Machine "a" cannot be delivered`)
}

func TestParameterFaults(t *testing.T) {
	for name, test := range map[string]struct {
		raw   map[string]string
		keys  []string
		words string
	}{
		"none":          {nil, nil, ""},
		"all":           {map[string]string{"maxInFlight": "6000", "maxFailures": "1", "pause": "false"}, nil, ""},
		"others":        {map[string]string{"force": "?"}, nil, ""},
		"not a number":  {map[string]string{"maxInFlight": "many"}, []string{"maxInFlight"}, `spec.parameters.maxInFlight: "many" must be a whole number from 1 to 6000`},
		"too small":     {map[string]string{"maxInFlight": "0"}, []string{"maxInFlight"}, `"0" must be`},
		"too large":     {map[string]string{"maxFailures": "6001"}, []string{"maxFailures"}, `"6001" must be`},
		"not a boolean": {map[string]string{"pause": "yes"}, []string{"pause"}, `spec.parameters.pause: "yes" must be "true" or "false"`},
		"several":       {map[string]string{"pause": "", "maxFailures": "x", "maxInFlight": "x"}, []string{"maxInFlight", "maxFailures", "pause"}, "spec.parameters.maxInFlight: "},
	} {
		t.Run(name, func(t *testing.T) {
			var keys []string
			for _, fault := range ParameterFaults(test.raw) {
				keys = append(keys, fault.Key)
			}
			require.Equal(t, test.keys, keys)
			_, fault := ReadParameters(test.raw)
			require.Equal(t, test.keys == nil, fault == "")
			require.Contains(t, fault, test.words)
		})
	}
}
