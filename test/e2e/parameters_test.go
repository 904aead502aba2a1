package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// targets counts the targets of an operation by how far they have come.
func targets(t *testing.T, op *unstructured.Unstructured) (complete, failed, halted, underWay int) {
	t.Helper()
	for i := range targetsOf(op) {
		target := targetOf(t, op, i)
		switch {
		case target["stage"] == "Halted":
			halted++
		case target["phase"] == "Failed":
			failed++
		case target["phase"] == "Complete":
			complete++
		case target["attempts"] != nil:
			underWay++
		}
	}
	return
}

func suffixes(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("-%02d", i))
	}
	return all
}

// An image that never boots, in an operation over a whole rack, wipes one host;
// the operation says which, and why the others were spared.
func TestBadImageWipesOneHost(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=broken=img-m")
	rack := addRack(t, c, suffixes(20)...)
	op := finished(t, c, createOperation(t, c, uniqueName(), "machineSelector: {matchLabels: {rack: "+rack+"}}").GetName())
	require.Equal(t, []string{"Failed", "ProviderFailed"}, []string{phase(op), reason(op)})
	require.Equal(t, `0 of 20 hosts were replaced; 1 failed, the first for Machine "`+rack+`-00": the provider reports: the image does not boot; 19 were not begun because of that (Halted)`, message(op))
	acts := 0
	for i := range 20 {
		target := targetOf(t, op, i)
		acts += calls(t, ours, op, target["machineRef"].(string)).DestructiveCalls
		if i > 0 {
			require.Equal(t, []any{"Failed", "Halted", nil}, []any{target["phase"], target["stage"], target["attempts"]})
			require.Contains(t, target["message"], `not replaced: Machine "`+rack+`-00" failed (the provider reports: the image does not boot)`)
		}
	}
	require.Equal(t, 1, acts)
	// What was spared is free again, under the same name.
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, claim := claimOf(collect, c, rack+"-19")
		assert.Empty(collect, claim.Holder.Name)
		assert.Empty(collect, claim.History)
	}, patience, interval)
}

// At no time are more targets under way than maxInFlight says, in no version of
// the operation that was ever stored.
func TestMaxInFlight(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	r, _ := newReconciler(t, c, asRead)
	rack := addRack(t, c, suffixes(7)...)
	name := createOperation(t, c, uniqueName(), "parameters: {maxInFlight: '3'}, machineSelector: {matchLabels: {rack: "+rack+"}}").GetName()
	most := 0
	reconcileUntil(t, r, name, func() bool {
		op := get(t, c, "machineoperations", name)
		_, _, _, underWay := targets(t, op)
		most = max(most, underWay)
		return phase(op) == "Complete"
	})
	require.Equal(t, 3, most)
	require.Equal(t, "7 of 7 hosts were replaced", message(get(t, c, "machineoperations", name)))
}

// A pause in the middle begins no further target until it is taken away, and what
// is under way is followed to its end.
func TestPause(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for how, value := range map[string]string{"paused": `"true"`, "a value that cannot be read": `"maybe"`} {
		t.Run(how, func(t *testing.T) {
			startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=delay=1s")
			rack := addRack(t, c, suffixes(3)...)
			name := createOperation(t, c, uniqueName(), "machineSelector: {matchLabels: {rack: "+rack+"}}").GetName()
			set := func(value string) {
				_, err := c.of("machineoperations").Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"parameters":{"pause":`+value+`}}}`), metav1.PatchOptions{})
				require.NoError(t, err)
			}
			require.EventuallyWithT(t, func(collect *assert.CollectT) { // in the middle of the first call
				assert.Equal(collect, 1, calls(collect, ours, get(collect, c, "machineoperations", name), rack+"-00").ReplaceCalls)
			}, patience, interval)
			set(value)
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				assert.Contains(collect, message(get(collect, c, "machineoperations", name)), "1 of 3 hosts were replaced; ")
			}, patience, interval)
			op := get(t, c, "machineoperations", name)
			words := "paused by spec.parameters.pause"
			if how != "paused" {
				words = `no further host is begun until this is corrected: spec.parameters.pause: "maybe" must be "true" or "false"`
			}
			require.Contains(t, message(op), words)
			// An operation that is created later runs meanwhile; this one does not go on.
			finished(t, c, newOperation(t, c, newMachine(t, c)))
			complete, failed, halted, underWay := targets(t, get(t, c, "machineoperations", name))
			require.Equal(t, []int{1, 0, 0, 0}, []int{complete, failed, halted, underWay})
			set("null")
			done := finished(t, c, name)
			require.Equal(t, "3 of 3 hosts were replaced", message(done))
		})
	}
}

// Parameters that cannot be read refuse the start, and nothing is frozen.
func TestParametersThatCannotBeRead(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	r, _ := newReconciler(t, c, asRead)
	machine := newMachine(t, c)
	for parameters, words := range map[string]string{
		"maxInFlight: '0'":     `spec.parameters.maxInFlight: "0" must be a whole number from 1 to 6000; create a new operation with a correct value`,
		"maxFailures: '10%'":   `spec.parameters.maxFailures: "10%" must be a whole number from 1 to 6000`,
		"pause: 'yes'":         `spec.parameters.pause: "yes" must be "true" or "false"`,
		"maxInFlight: ' 1'":    `spec.parameters.maxInFlight: " 1" must be`,
		"maxFailures: '10000'": `spec.parameters.maxFailures: "10000" must be`,
	} {
		op := reconcileUntilFinished(t, c, r, createOperation(t, c, uniqueName(), "parameters: {"+parameters+"}, machineRef: "+machine).GetName())
		require.Equal(t, "InvalidParameters", reason(op), parameters)
		require.Contains(t, message(op), words)
		require.Empty(t, targetsOf(op))
	}
}

// Whoever may create Machines makes one with a label that somebody selects, and
// with another host's providerID: neither host is replaced.
func TestAnotherHostsIdentifier(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "hostreplace")
	chassis := uniqueName()
	victim := uniqueName()
	store(t, c, "machines", object(t, "machines", victim, "spec: {"+hostAt("image: img-m, provisioningFormat: CloudInit", chassis)+"}"))
	rack := addRack(t, c, "-a")
	intruder := object(t, "machines", rack+"-b", "spec: {"+hostAt("image: img-evil, provisioningFormat: CloudInit", chassis)+"}")
	intruder.SetLabels(map[string]string{"rack": rack})
	store(t, c, "machines", intruder)
	// The index of hosts may be a moment late. The same watch has told it of this
	// Machine once an operation on a later one has finished.
	finished(t, c, newOperation(t, c, newMachine(t, c)))
	for _, fields := range []string{"machineRef: " + victim, "machineSelector: {matchLabels: {rack: " + rack + "}}"} {
		op := finished(t, c, createOperation(t, c, uniqueName(), fields).GetName())
		require.Equal(t, "HostShared", reason(op), message(op))
		require.Contains(t, message(op), fmt.Sprintf("Machines %q and %q both name providerID %q of provider \"Simulated\"", min(victim, rack+"-b"), max(victim, rack+"-b"), chassis))
		require.Empty(t, targetsOf(op))
	}
	// Corrected, both can be replaced.
	require.NoError(t, patchSpec(t, c, rack+"-b", `{"host":{"external":{"providerID":"`+uniqueName()+`"}}}`))
	op := finished(t, c, createOperation(t, c, uniqueName(), "parameters: {maxInFlight: '2'}, machineSelector: {matchLabels: {rack: "+rack+"}}").GetName())
	require.Equal(t, "Complete", phase(op), message(op))
}

// No live read for events that are not ours to act on: of other kinds, of
// operations for other providers, and of finished ones.
func TestEventsOfOthers(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	p := newProxy(t, ours)
	reads := map[string]int{}
	elsewhere := "spec: {host: {image: img-m, provisioningFormat: CloudInit, external: {provider: Elsewhere, providerID: NAME}}}"
	machine := uniqueName()
	u := object(t, "machines", machine, strings.ReplaceAll(elsewhere, "NAME", machine))
	u.SetLabels(map[string]string{"rack": machine})
	store(t, c, "machines", u)
	startControllers(t, ours, p.kubeconfig, "hostreplace")
	done := finished(t, c, newOperation(t, c, newMachine(t, c)))

	others := map[string]string{
		"another kind":         createOf(t, c, "HostReboot", "machineRef: "+machine),
		"another provider":     createOf(t, c, "HostReplace", "machineRef: "+machine),
		"another one's rack":   createOf(t, c, "HostReplace", "machineSelector: {matchLabels: {rack: "+machine+"}}"),
		"finished long before": done.GetName(),
	}
	finished(t, c, newOperation(t, c, newMachine(t, c))) // by then all have been seen
	p.mu.Lock()
	p.read = func(r *http.Request) {
		for _, name := range others {
			if strings.HasSuffix(r.URL.Path, "/"+name) || strings.HasSuffix(r.URL.Path, "/"+machine) || strings.Contains(r.URL.RawQuery, machine) {
				reads[name]++
			}
		}
	}
	p.mu.Unlock()
	for round := range 20 {
		for _, name := range others {
			_, err := c.of("machineoperations").Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"status":{"message":"round %d"}}`, round), metav1.PatchOptions{}, "status")
			require.NoError(t, err)
		}
	}
	finished(t, c, newOperation(t, c, newMachine(t, c)))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Empty(t, reads)
}

func createOf(t *testing.T, c client, kind, fields string) string {
	t.Helper()
	name := uniqueName()
	_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: "+kind+", "+fields+"}"), metav1.CreateOptions{})
	require.NoError(t, err)
	return name
}
