package resolve

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
)

// A host has the same claim for every Machine that names it, and no two hosts share
// one.
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

// A claim is read as it was written. A holder that cannot be parsed is no operation.
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
		fault := claim.NameFault(test.op, "worker-1")
		if test.used == "" {
			require.Empty(t, fault, name)
			continue
		}
		require.Equal(t, Fault{NameUsed, fmt.Sprintf(`another MachineOperation %q, with UID %s, has claimed the host of Machine "worker-1" before, and a name replaces a host once; to replace it again, create an operation with another name, for example with metadata.generateName`, test.op.Name, test.used)}, fault, name)
	}
}

// A name that is refused again and again stays in the history, even if many other
// operations replace the host in between. The name that was unused longest is
// dropped.
func TestHistory(t *testing.T) {
	claim := Claim{}.TakenBy(Holder{"gitops", "u-0"})
	require.Equal(t, Claim{Holder: Holder{"gitops", "u-0"}, Fence: 1}, claim)
	for i := range 200 {
		claim = claim.TakenBy(Holder{fmt.Sprintf("swap-%d", i), "u"})
		require.Equal(t, NameUsed, claim.NameFault(Holder{"gitops", "u-1"}, "m").Reason, i)
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
		require.Empty(t, SharedFault(host, none))
	}
	require.Empty(t, SharedFault(Host{Machine: "m-2", Provider: "P"}, []string{"m-2", "m-1"}), "without a providerID")
	require.Equal(t, Fault{HostShared, `Machines "m-1" and "m-2" both name providerID "bay-1" of provider "P"; correct the wrong one, then create a new operation`}, SharedFault(host, []string{"m-2", "m-1"}))
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

func TestTakeFault(t *testing.T) {
	self, other, namesake := Holder{"swap", "u-1"}, Holder{"other", "u-2"}, Holder{"swap", "u-0"}
	for name, test := range map[string]struct {
		claim  Claim
		active bool
		reason Reason
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
			fault, err := test.claim.TakeFault(self, "a", func(holder Holder) (bool, error) {
				require.Equal(t, other, holder, "nobody else decides")
				return test.active, nil
			})
			require.NoError(t, err)
			require.Equal(t, test.reason, fault.Reason)
			require.Equal(t, test.reason == "", fault.Message == "")
			require.Contains(t, fault.Message, test.words)
		})
	}
	_, err := Claim{Holder: other}.TakeFault(self, "a", func(Holder) (bool, error) { return false, errors.New("unreachable") })
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
			fault := test.claim.HoldFault(self, host)
			require.Equal(t, test.words != "", fault.Reason == ClaimLost)
			require.Contains(t, fault.Message, test.words)
		})
	}
}
