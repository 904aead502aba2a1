package plugin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// claimOn returns the Lease that is the claim on a host of provider p.
func claimOn(providerID, holder, history string) string {
	name := resolve.Host{Provider: "p", ProviderID: providerID}.ClaimName()
	lease := "\n---\napiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: " + name + ", namespace: hostformat-system"
	if history != "" {
		lease += ", annotations: {hostformat.unbounded-cloud.io/operations: " + history + "}"
	}
	lease += "}\nspec: {leaseTransitions: 4"
	if holder != "" {
		lease += ", holderIdentity: " + holder
	}
	return lease + "}"
}

func onHost(name, providerID, more string) string {
	return "\n---\n" + head + "Machine\nmetadata: {name: " + name + ", uid: m-" + name + ", labels: {rack: '7'}, " + before(48*time.Hour) + "}\nspec: {host: {image: img-a, external: {provider: p, providerID: " + providerID + "}" + more + "}}"
}

func stored(name, more, spec, status string) string {
	return head + "MachineOperation\nmetadata: {name: " + name + ", uid: u-" + name + more + ", " + before(time.Minute) + "}\nspec: {operationKind: HostReplace, " + spec + "}\nstatus: {" + status + "}"
}

// explain shows the provider of a Machine and the holder of the claim on its host.
func TestExplainClaim(t *testing.T) {
	lease := resolve.Host{Provider: "p", ProviderID: "bay-1"}.ClaimName()
	for name, test := range map[string]struct {
		claim, other string // the operation other
		denied       string
		bare         bool
		args         []string
		want         *claimExplanation
		reason, says string
		warns        string
	}{
		"never claimed":       {want: &claimExplanation{Lease: lease}, says: "claim free refused no"},
		"given back":          {claim: claimOn("bay-1", "", ""), want: &claimExplanation{Lease: lease, Fence: 4}, says: "claim free (Lease " + lease + ")"},
		"held":                {claim: claimOn("bay-1", "other/u-other", ""), other: "phase: InProgress", want: &claimExplanation{Lease: lease, Holder: "other", Fence: 4}, reason: "OtherOperation", says: "claim held by MachineOperation other (Lease " + lease + ")"},
		"finished":            {claim: claimOn("bay-1", "other/u-other", ""), other: "phase: Complete", want: &claimExplanation{Lease: lease, Fence: 4}, says: "claim free; last held by MachineOperation other (Lease " + lease + ")"},
		"gone":                {claim: claimOn("bay-1", "gone/u-gone", ""), want: &claimExplanation{Lease: lease, Fence: 4}, says: "claim free; last held by MachineOperation gone"},
		"a namesake":          {claim: claimOn("bay-1", "other/u-0", ""), other: "phase: InProgress", want: &claimExplanation{Lease: lease, Fence: 4}, says: "claim free; last held by MachineOperation other"},
		"no such name":        {claim: claimOn("bay-1", "A/../b", ""), want: &claimExplanation{Lease: lease, Fence: 4}, says: "claim free; last held by"},
		"another host":        {claim: claimOn("bay-2", "other/u-other", ""), other: "phase: InProgress", want: &claimExplanation{Lease: lease}, says: "claim free refused no"},
		"Leases forbidden":    {claim: claimOn("bay-1", "other/u-other", ""), other: "phase: InProgress", denied: "leases", says: "claim not known refused no", warns: "Leases in namespace hostformat-system may not be read (needs get and list on leases of coordination.k8s.io)"},
		"holder forbidden":    {claim: claimOn("bay-1", "other/u-other", ""), other: "phase: InProgress", denied: "machineoperations", says: "claim not known", warns: "MachineOperations may not be read"},
		"namespace forbidden": {denied: "namespaces", want: &claimExplanation{Lease: lease}, says: "claim free refused no"},
		"no namespace":        {bare: true, says: "claim not known", warns: "there is no namespace hostformat-system (--claim-namespace names the one of the controller)"},
		"another namespace":   {claim: claimOn("bay-1", "other/u-other", ""), other: "phase: InProgress", args: []string{"--claim-namespace=elsewhere"}, says: "claim not known", warns: "there is no namespace elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newStub(t, stored("other", "", "machineRef: a", test.other)+onHost("a", "bay-1", "")+test.claim)
			cluster.denied, cluster.bare = test.denied, test.bare
			want := 0
			if test.reason != "" {
				want = exitFindings
			}
			stdout, stderr, code := cluster.of(t, append(test.args, "explain", "machine/a")...)
			require.Equal(t, want, code, stdout+stderr)
			flat := strings.Join(strings.Fields(stdout), " ")
			require.Contains(t, flat, "provider p, providerID bay-1 image img-a")
			require.Contains(t, flat, test.says)
			requireNarrow(t, stdout)
			require.Equal(t, test.warns != "", stderr != "", stderr)
			if test.warns != "" {
				require.Equal(t, 1, strings.Count(stderr, "\n"))
				require.Contains(t, stderr, "warning: it is not known which operations hold the claims on hosts, and whether one of them is in the way: "+test.warns)
			}
			stdout, _, code = cluster.of(t, append(test.args, "explain", "machine/a", "-o", "json")...)
			require.Equal(t, want, code)
			var e explanation
			require.NoError(t, json.Unmarshal([]byte(stdout), &e))
			require.Equal(t, [3]string{"p", "bay-1", test.reason}, [3]string{e.Provider, e.ProviderID, string(e.Reason)})
			require.Equal(t, test.want, e.Claim)
			require.Equal(t, test.want == nil, strings.Contains(stdout, `"claim": null`))
			stdout, _, _ = cluster.of(t, append(test.args, "explain", "--all", "-o", "wide")...)
			columns := map[bool]string{true: "?", false: "free"}[test.want == nil]
			if test.reason != "" {
				columns = "other"
			}
			require.Regexp(t, `img-a +CloudInit .* p +bay-1 +`+strings.ReplaceAll(columns, "?", `\?`)+" ", stdout)
		})
	}
	_, stderr, code := in(t, "", "explain", "machine/a", "--claim-namespace=A/b", "--server=https://127.0.0.1:1")
	require.Equal(t, exitTrouble, code)
	require.Contains(t, stderr, `--claim-namespace: "A/b" cannot be the name of a namespace`)
}

// Without a cluster, explain says nothing about claims.
func TestExplainFilesWithoutClaims(t *testing.T) {
	stdout, stderr, code := in(t, strings.TrimPrefix(onHost("a", "bay-1", ""), "\n---\n"), "explain", "-f", "-")
	require.Zero(t, code)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "provider  p, providerID bay-1")
	require.NotContains(t, stdout, "claim")
}

// A replacement is refused if another Machine names the same host.
func TestExplainSharedHost(t *testing.T) {
	const message = `Machines "a" and "b" both name providerID "bay-1" of provider "p"; correct the wrong one, then create a new operation`
	machines := onHost("a", "bay-1", "") + onHost("b", "bay-1", ", provisioningFormat: Ignition") + onHost("c", "bay-2", "") +
		"\n---\n" + head + "Machine\nmetadata: {name: d}\nspec: {provider: p}" + "\n---\n" + head + "Machine\nmetadata: {name: e}\nspec: {provider: p}"
	cluster := newStub(t, strings.TrimPrefix(machines, "\n---\n"))
	unreadable := newStub(t, strings.TrimPrefix(onHost("a", "bay-1", "")+onHost("b", "bay-1", "")+"\nstatus: {observedProvisioningFormat: 7}", "\n---\n"))
	for name, test := range map[string]struct {
		cluster *stub
		args    []string
		want    []string // reasons
	}{
		"named":            {cluster, []string{"machine/a"}, []string{"HostShared"}},
		"before the pair":  {cluster, []string{"machine/b"}, []string{"HostShared"}},
		"its own":          {cluster, []string{"machine/c"}, []string{""}},
		"no providerID":    {cluster, []string{"machine/d"}, []string{""}},
		"all":              {cluster, []string{"--all"}, []string{"HostShared", "HostShared", "", "", ""}},
		"selected":         {cluster, []string{"-l", "rack=7"}, []string{"HostShared", "HostShared", ""}},
		"other unreadable": {unreadable, []string{"machine/a"}, []string{"HostShared"}},
		"unreadable":       {unreadable, []string{"machine/b"}, []string{"Unreadable"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, _ := test.cluster.of(t, append([]string{"explain", "-o", "json"}, test.args...)...)
			require.Empty(t, stderr)
			if !strings.HasPrefix(stdout, "[") {
				stdout = "[" + stdout + "]"
			}
			var list []explanation
			require.NoError(t, json.Unmarshal([]byte(stdout), &list), stdout)
			var reasons []string
			for _, e := range list {
				reasons = append(reasons, string(e.Reason))
				if e.Reason == "HostShared" {
					require.Equal(t, message, e.Refused)
				}
			}
			require.Equal(t, test.want, reasons)
		})
	}
	stdout, _, code := in(t, strings.TrimPrefix(machines, "\n---\n"), "explain", "-f", "-")
	require.Equal(t, exitFindings, code)
	require.Equal(t, 2, strings.Count(stdout, "HostShared"), "manifests are a fleet, too")
}

// audit reports a shared host for each Machine that names it, and says nothing about
// claims.
func TestAuditSharedHosts(t *testing.T) {
	machines := onHost("a", "bay-1", ", provisioningFormat: Ignition") + onHost("b", "bay-2", "") + onHost("c", "bay-1", ", provisioningFormat: Ignition") + onHost("d", "bay-1", "") +
		claimOn("bay-2", "other/u-other", "") + "\n---\n" + stored("other", "", "machineRef: b", "phase: InProgress")
	stdout, _, code := newStub(t, strings.TrimPrefix(machines, "\n---\n")).of(t, "audit", "-o", "json")
	require.Equal(t, exitFindings, code)
	var findings []finding
	require.NoError(t, json.Unmarshal([]byte(stdout), &findings))
	var found []string
	for _, f := range findings {
		found = append(found, f.Finding+" "+f.Rule+" "+f.Name)
	}
	require.Equal(t, []string{"replace IgnitionNotDeliverable a", "replace HostShared c", "replace HostShared a", "replace HostShared d"}, found)
	require.Equal(t, `Machines "a" and "d" both name providerID "bay-1" of provider "p"; correct the wrong one, then create a new operation`, findings[3].Message)
}

// audit reports invalid parameters of unfinished operations, and does not warn of
// names.
func TestAuditParameters(t *testing.T) {
	for phase, want := range map[string]int{"Pending": 1, "InProgress": 1, "Complete": 0, "Failed": 0} {
		stdout, _, _ := newStub(t, stored("swap", "", "parameters: {maxFailures: none}", "phase: "+phase)).of(t, "audit", "-o", "json")
		require.Equal(t, want, strings.Count(stdout, `"finding":"replace","rule":"InvalidParameters","kind":"MachineOperation","name":"swap","field":"spec.parameters.maxFailures"`), stdout)
		require.NotContains(t, stdout, "fixedName")
	}
}

// explain refuses an operation for the hosts of its Machines, as the controller does
// before it claims one.
func TestExplainStart(t *testing.T) {
	const selected = "machineSelector: {matchLabels: {rack: '7'}}"
	fine := onHost("a", "bay-1", "") + onHost("b", "bay-2", "")
	running := "\n---\n" + stored("other", "", "machineRef: b", "phase: InProgress")
	for name, test := range map[string]struct {
		spec, machines string
		denied         string
		reason, says   string
		targets        []string // reasons
	}{
		"fine":              {selected, fine, "", "", "claim free refused no", []string{"", ""}},
		"shared":            {"machineRef: a", fine + onHost("z", "bay-1", ""), "", "HostShared", `Machines "a" and "z" both name`, []string{""}},
		"shared in it":      {selected, fine + onHost("z", "bay-1", ", provisioningFormat: Ignition"), "", "HostShared", `Machines "a" and "z" both name`, []string{"", "", "IgnitionNotDeliverable"}},
		"name used":         {"machineRef: a", fine + claimOn("bay-1", "", "swap/u-0"), "", "NameUsed", "UID u-0, has claimed the host", []string{""}},
		"name holds":        {"machineRef: a", fine + claimOn("bay-1", "swap/u-0", ""), "", "NameUsed", "UID u-0, has claimed the host", []string{""}},
		"its own claim":     {"machineRef: a", fine + claimOn("bay-1", "swap/u-swap", ""), "", "", "claim held by this operation", []string{""}},
		"held":              {selected, fine + running + claimOn("bay-2", "other/u-other", ""), "", "OtherOperation", `MachineOperation "other" is replacing the host of Machine "b"`, []string{"", ""}},
		"held, not known":   {selected, fine + running + claimOn("bay-2", "other/u-other", ""), "leases", "", "claim not known", []string{"", ""}},
		"held before":       {selected, fine + claimOn("bay-2", "gone/u-other", ""), "", "", "last held by MachineOperation gone", []string{"", ""}},
		"unresolvable":      {selected, onHost("a", "bay-1", "") + onHost("b", "bay-2", "") + "\nstatus: {observedProvisioningFormat: Ignition}", "", "FormatNotDeclared", `Machine "b": Machine spec.host.provisioningFormat`, []string{"", "FormatNotDeclared"}},
		"undeliverable":     {selected, onHost("a", "bay-1", "") + onHost("b", "bay-2", ", provisioningFormat: Ignition"), "", "IgnitionNotDeliverable", `Machine "b": the image boots with Ignition`, []string{"Halted", "IgnitionNotDeliverable"}},
		"undeliverable one": {"machineRef: a", onHost("a", "bay-1", ", provisioningFormat: Ignition"), "", "IgnitionNotDeliverable", "the provider was not called", []string{"IgnitionNotDeliverable"}},
		"parameters":        {"machineRef: a, parameters: {pause: maybe}", fine, "", "InvalidParameters", `spec.parameters.pause: "maybe" must be "true" or "false"`, []string{""}},
		"pair before claim": {selected, onHost("a", "bay-1", "") + onHost("b", "bay-2", ", provisioningFormat: Ignition") + claimOn("bay-1", "", "swap/u-0"), "", "IgnitionNotDeliverable", "", []string{"Halted", "IgnitionNotDeliverable"}},
		"one is going":      {"machineRef: a", strings.Replace(onHost("a", "bay-1", ""), "uid:", "deletionTimestamp: '2026-01-01T00:00:00Z', uid:", 1), "", "", "MachineDeleting", []string{"MachineDeleting"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newStub(t, stored("swap", "", test.spec, "")+test.machines)
			cluster.denied = test.denied
			stdout, _, _ := cluster.of(t, "explain", "mop/swap")
			require.Contains(t, strings.Join(strings.Fields(stdout), " "), test.says)
			requireNarrow(t, stdout)
			requireOperation(t, cluster, test.reason, test.targets)
		})
	}
}

func requireOperation(t *testing.T, cluster *stub, reason string, targets []string) {
	t.Helper()
	stdout, stderr, code := cluster.of(t, "explain", "mop/swap", "-o", "json")
	var e operationExplanation
	require.NoError(t, json.Unmarshal([]byte(stdout), &e), stderr)
	require.EqualValues(t, reason, e.Reason, e.Refused)
	require.Equal(t, reason == "", e.Refused == "")
	var reasons []string
	for _, target := range e.Targets {
		reasons = append(reasons, string(target.Reason))
	}
	require.Equal(t, targets, reasons)
	require.Equal(t, reason != "" || strings.Join(targets, "") != "", code == exitFindings)
}

// explain refuses frozen targets that the controller would fail.
func TestExplainFrozenClaims(t *testing.T) {
	const (
		started  = ", annotations: {hostformat.unbounded-cloud.io/started: u-swap}"
		marked   = ", annotations: {hostformat.unbounded-cloud.io/started: u-swap, hostformat.unbounded-cloud.io/claimed: 'true'}"
		frozen   = ", conditions: [{type: Frozen, status: 'True'}]"
		own      = "swap/u-swap"
		accepted = ", attempts: 1, providerOperation: {provider: p, operationID: job-1}"
	)
	target := func(machine, bay, more string) string {
		return "{machineRef: " + machine + more + ", input: {hostImage: img-a, provisioningFormat: CloudInit, machineUID: m-" + machine + ", provider: p, providerID: " + bay + "}}"
	}
	a, b := target("a", "bay-1", ""), target("b", "bay-2", "")
	unpinned := "{machineRef: a, input: {hostImage: img-a, provisioningFormat: CloudInit}}"
	running := "\n---\n" + stored("other", "", "machineRef: a", "phase: InProgress")
	lost := claimOn("bay-1", "other/u-other", "")
	for name, test := range map[string]struct {
		metadata, spec, targets, conditions string
		more                                string
		denied                              string
		reason                              string
		want                                []string
	}{
		"held":                       {marked, "machineRef: a", a, frozen, claimOn("bay-1", own, ""), "", "", []string{""}},
		"removed by hand":            {marked, "machineRef: a", a, frozen, "", "", "", []string{"ClaimLost"}},
		"started before claims":      {started, "machineRef: a", a, frozen, "", "", "", []string{""}},
		"lost":                       {marked, "machineRef: a", a, frozen, running + lost, "", "", []string{"ClaimLost"}},
		"lost, holder gone":          {marked, "machineRef: a", a, frozen, lost, "", "", []string{"ClaimLost"}},
		"lost, not known":            {marked, "machineRef: a", a, frozen, running + lost, "leases", "", []string{""}},
		"lost, accepted":             {marked, "machineRef: a", target("a", "bay-1", accepted), frozen, running + lost, "", "", []string{""}},
		"lost, complete":             {marked, "machineRef: a", target("a", "bay-1", ", phase: Complete"), frozen, running + lost, "", "", []string{""}},
		"another Machine":            {marked, "machineRef: b", a, frozen, claimOn("bay-1", own, ""), "", "", []string{"TargetMismatch"}},
		"another Machine, accepted":  {marked, "machineRef: b", target("a", "bay-1", accepted), frozen, claimOn("bay-1", own, ""), "", "", []string{""}},
		"without pins":               {marked, "machineRef: a", unpinned, frozen, "", "", "", []string{"TargetMismatch"}},
		"without pins, others":       {marked, "machineRef: a", unpinned, "", claimOn("bay-1", own, ""), "", "", []string{""}},
		"halted":                     {marked, "machineRef: ''", target("a", "bay-1", ", phase: Failed") + ", " + b, frozen, claimOn("bay-2", own, ""), "", "", []string{"", "Halted"}},
		"halted, attempted":          {marked, "machineRef: ''", target("a", "bay-1", ", phase: Failed") + ", " + target("b", "bay-2", ", attempts: 1"), frozen, claimOn("bay-2", own, ""), "", "", []string{"", ""}},
		"more may fail":              {marked, "parameters: {maxFailures: '2'}", target("a", "bay-1", ", phase: Failed") + ", " + b, frozen, claimOn("bay-2", own, ""), "", "", []string{"", ""}},
		"paused":                     {marked, "parameters: {pause: 'true'}", target("a", "bay-1", ", phase: Failed") + ", " + b, frozen, claimOn("bay-2", own, ""), "", "", []string{"", ""}},
		"to be marked":               {"", "machineRef: a", a, frozen, claimOn("bay-1", own, ""), "", "", []string{""}},
		"to be claimed":              {"", "machineRef: a", a, frozen, "", "", "", []string{""}},
		"to be claimed, held":        {"", "machineRef: a", a, frozen, running + lost, "", "OtherOperation", []string{""}},
		"to be claimed, used":        {"", "machineRef: a", a, frozen, claimOn("bay-1", "", "swap/u-0"), "", "NameUsed", []string{""}},
		"to be claimed, shared":      {"", "machineRef: a", a, frozen, onHost("z", "bay-1", ""), "", "HostShared", []string{""}},
		"to be claimed, called":      {"", "machineRef: a", target("a", "bay-1", ", attempts: 1"), frozen, running + lost, "", "", []string{"ClaimLost"}},
		"to be claimed, called free": {"", "machineRef: a", target("a", "bay-1", ", attempts: 1"), frozen, lost, "", "", []string{""}},
		"legacy, held":               {"", "machineRef: a", "{machineRef: a, input: {hostImage: img-a}}", "", running + lost, "", "OtherOperation", []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newStub(t, stored("swap", test.metadata, test.spec, "phase: InProgress, targets: ["+test.targets+"]"+test.conditions)+onHost("a", "bay-1", ", provisioningFormat: CloudInit")+onHost("b", "bay-2", ", provisioningFormat: CloudInit")+test.more)
			cluster.denied = test.denied
			requireOperation(t, cluster, test.reason, test.want)
		})
	}
}

// For many Machines, Leases and operations are listed; for few, they are read singly.
func TestExplainReadsManyClaimsAtOnce(t *testing.T) {
	for machines, single := range map[int]bool{2: true, 200: false} {
		text := ""
		for n := range machines {
			bay, holder := fmt.Sprintf("bay-%d", n), fmt.Sprintf("other-%d", n)
			text += onHost(fmt.Sprintf("m-%d", n), bay, "") + claimOn(bay, holder+"/u-"+holder, "") + "\n---\n" + stored(holder, "", "machineRef: x", "")
		}
		cluster := newStub(t, strings.TrimPrefix(text, "\n---\n"))
		stdout, stderr, _ := cluster.of(t, "explain", "--all")
		require.Empty(t, stderr)
		require.Equal(t, machines, strings.Count(stdout, "OtherOperation"))
		asked := strings.Join(cluster.asked, " ")
		require.Equal(t, single, strings.Contains(asked, "leases/"))
		require.Equal(t, single, strings.Contains(asked, "machineoperations/"))
		require.Equal(t, 1, strings.Count(asked+" ", "machines "), "one list of Machines")
	}
}
