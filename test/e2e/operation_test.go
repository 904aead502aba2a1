package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Each row of the resolution table, as a real operation.
func TestResolutionTable(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "*", "--simulated-provider=duration=10ms")
	for name, test := range map[string]struct {
		machine, template, observed string // fields of spec.host and of spec.template.host
		image, format               string // frozen; empty format: nothing is
		acts                        int
		reason, says                string
	}{
		"1 both declared":             {"image: img-m, provisioningFormat: CloudInit", "image: img-t, provisioningFormat: Ignition", "Ignition", "img-m", "CloudInit", 1, "Replaced", "image img-m from machine, format CloudInit from machine"},
		"1 both declared, Ignition":   {"image: img-m, provisioningFormat: Ignition", "", "", "img-m", "Ignition", 0, "IgnitionNotDeliverable", "format Ignition from machine"},
		"2 undeclared on Ignition":    {"image: img-m", "image: img-t, provisioningFormat: CloudInit", "Ignition", "", "", 0, "FormatNotDeclared", ""},
		"3 observed":                  {"image: img-m", "image: img-t", "CloudInit", "img-m", "CloudInit", 1, "Replaced", "format CloudInit observed"},
		"4 nothing known":             {"image: img-m", "", "", "img-m", "CloudInit", 1, "Replaced", "format CloudInit from legacy fallback"},
		"5 template and declared":     {"provisioningFormat: CloudInit", "image: img-t, provisioningFormat: Ignition", "Ignition", "img-t", "CloudInit", 1, "Replaced", "image img-t from MachineConfigurationVersion"},
		"6 template declares":         {"", "image: img-t, provisioningFormat: CloudInit", "Ignition", "img-t", "CloudInit", 1, "Replaced", "format CloudInit from MachineConfigurationVersion"},
		"6 template, Ignition":        {"", "image: img-t, provisioningFormat: Ignition", "", "img-t", "Ignition", 0, "IgnitionNotDeliverable", "format Ignition from MachineConfigurationVersion"},
		"7 template undeclared":       {"", "image: img-t", "Ignition", "", "", 0, "FormatNotDeclared", ""},
		"8 template observed":         {"", "image: img-t", "CloudInit", "img-t", "CloudInit", 1, "Replaced", "format CloudInit observed"},
		"9 template, nothing known":   {"", "image: img-t", "", "img-t", "CloudInit", 1, "Replaced", "format CloudInit from legacy fallback"},
		"10 kept and declared":        {"provisioningFormat: CloudInit", "provisioningFormat: Ignition", "Ignition", "", "CloudInit", 1, "Replaced", "current image kept, format CloudInit from machine"},
		"11 kept and observed":        {"", "provisioningFormat: CloudInit", "Ignition", "", "Ignition", 0, "IgnitionNotDeliverable", "current image kept, format Ignition observed"},
		"12 kept, nothing known":      {"", "", "", "", "CloudInit", 1, "Replaced", "current image kept, format CloudInit from legacy fallback"},
		"whitespace is no image":      {`image: " \t"`, "image: img-t, provisioningFormat: CloudInit", "", "img-t", "CloudInit", 1, "Replaced", ""},
		"legacy spelling of provider": {"LEGACY", "", "", "", "CloudInit", 1, "Replaced", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machine := uniqueName()
			chassis := uniqueName()
			spec := "spec: {" + hostAt(test.machine, chassis)
			if test.machine == "LEGACY" {
				spec = "spec: {provider: Simulated, providerID: " + chassis
			}
			if test.template != "" {
				v := object(t, "machineconfigurationversions", machine+"-v3", "spec: {version: 3, template: {host: {"+test.template+"}}}")
				v.SetLabels(map[string]string{"unbounded-cloud.io/machine-configuration": machine})
				store(t, c, "machineconfigurationversions", v)
				spec += ", configurationRef: {name: " + machine + "}"
			}
			spec += "}"
			u := object(t, "machines", machine, spec)
			if test.observed != "" {
				u.Object["status"] = map[string]any{"observedProvisioningFormat": test.observed}
			}
			stored := store(t, c, "machines", u)

			before := explain(t, ours, machine)
			op := finished(t, c, newOperation(t, c, machine))
			require.Equal(t, test.reason, reason(op), "%v", op.Object["status"])
			require.Equal(t, []string{test.image, test.format}, []string{before.Image, before.Format}, "explain says what is frozen")
			require.Equal(t, test.acts == 0, before.Refused != "", before.Refused)
			if test.acts == 0 {
				require.Equal(t, test.reason, before.Reason)
			}
			require.Equal(t, map[bool]string{true: "Complete", false: "Failed"}[test.acts == 1], phase(op))
			record := calls(t, ours, op, machine)
			require.Equal(t, test.acts, record.DestructiveCalls)
			require.Equal(t, test.acts, record.ReplaceCalls)
			if test.format == "" {
				require.NotContains(t, op.Object["status"], "targets", "nothing is frozen")
				require.Contains(t, message(op), "must be declared")
				return
			}
			want := map[string]any{"provisioningFormat": test.format, "machineUID": string(stored.GetUID()), "provider": "Simulated", "providerID": chassis}
			if test.image != "" {
				want["hostImage"] = test.image
			}
			require.Equal(t, want, inputOf(t, op))
			if test.acts == 1 {
				require.Equal(t, test.image, record.Image)
				require.Equal(t, test.format, record.Format)
			}
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				events, err := ours.Kubectl(t.Context(), nil, "get", "events", "-A", "-o", "jsonpath={range .items[*]}{.involvedObject.name} {.message}{\"\\n\"}{end}")
				assert.NoError(collect, err)
				assert.Contains(collect, events, op.GetName()+" image and format are frozen: ")
				assert.Contains(collect, events, test.says)
			}, patience, interval)
			if test.acts == 1 {
				require.Equal(t, string(op.GetUID()), op.GetAnnotations()["hostformat.unbounded-cloud.io/started"])
			}
			require.Equal(t, stored.Object["spec"], get(t, c, "machines", machine).Object["spec"], "the Machine is not touched")
		})
	}
}

// Of two operations for one Machine, one fires; a selector counts as one.
func TestTwoOperationsForOneMachine(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for name, second := range map[string]string{"by name": "machineRef: NAME", "by selector": "machineSelector: {matchLabels: {rack: NAME}}"} {
		t.Run(name, func(t *testing.T) {
			machine := uniqueName()
			u := object(t, "machines", machine, "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}")
			u.SetLabels(map[string]string{"rack": machine})
			store(t, c, "machines", u)
			names := []string{newOperation(t, c, machine), uniqueName()}
			_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", names[1],
				"spec: {operationKind: HostReplace, "+strings.Replace(second, "NAME", machine, 1)+"}"), metav1.CreateOptions{})
			require.NoError(t, err)
			// The first one must not be over before the second one starts.
			startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=duration=3s")

			acts, outcomes := 0, map[string]string{}
			for _, name := range names {
				op := finished(t, c, name)
				outcomes[phase(op)] = reason(op) + ": " + message(op)
				acts += calls(t, ours, op, machine).DestructiveCalls
			}
			require.Equal(t, 1, acts)
			require.Equal(t, "Replaced: the host was replaced", outcomes["Complete"])
			require.Contains(t, outcomes["Failed"], "OtherOperation: MachineOperation \"")
			require.Contains(t, outcomes["Failed"], "is replacing the host of Machine \"")
		})
	}
}

// What must not fire, does not, and says why.
func TestRefusedOperations(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "*")
	machine := func(t *testing.T, spec string) string {
		name := uniqueName()
		u := object(t, "machines", name, spec)
		u.SetLabels(map[string]string{"rack": name})
		store(t, c, "machines", u)
		return name
	}
	simulated := func() string { return "spec: {" + host("image: img-m, provisioningFormat: CloudInit") + "}" }
	create := func(t *testing.T, text string) string {
		name := uniqueName()
		u := object(t, "machineoperations", name, text)
		_, err := c.of("machineoperations").Create(t.Context(), u, metav1.CreateOptions{})
		require.NoError(t, err)
		return name
	}
	refused := func(t *testing.T, name, wantReason, words string) {
		op := finished(t, c, name)
		require.Equal(t, "Failed", phase(op))
		require.Equal(t, wantReason, reason(op))
		require.Contains(t, message(op), words)
		require.NotContains(t, op.Object["status"], "targets")
	}

	t.Run("neither Machine nor selector", func(t *testing.T) {
		refused(t, create(t, "spec: {operationKind: HostReplace}"), "InvalidSelection", "exactly one of spec.machineRef and spec.machineSelector")
	})
	t.Run("both", func(t *testing.T) {
		m := machine(t, simulated())
		refused(t, create(t, "spec: {operationKind: HostReplace, machineRef: "+m+", machineSelector: {matchLabels: {rack: "+m+"}}}"), "InvalidSelection", "exactly one")
	})
	t.Run("nothing selected", func(t *testing.T) {
		refused(t, create(t, "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: none}}}"), "NothingSelected", "no Machine matches")
	})
	t.Run("missing version", func(t *testing.T) {
		m := machine(t, "spec: {"+host("")+", configurationRef: {name: nope, version: 7}}")
		refused(t, newOperation(t, c, m), "VersionNotFound", `MachineConfigurationVersion "nope-v7", which spec.configurationRef pins, does not exist`)
		m = machine(t, "spec: {"+host("")+", configurationRef: {name: nope}}")
		refused(t, newOperation(t, c, m), "VersionNotFound", `MachineConfiguration "nope", which spec.configurationRef names, has no version`)
	})
	t.Run("a Machine that does not exist is not ours", func(t *testing.T) {
		name := newOperation(t, c, "no-such-machine")
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			out, err := ours.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector=involvedObject.name="+name)
			assert.NoError(collect, err)
			assert.Contains(collect, out, "MachineNotFound")
		}, patience, interval)
		require.NotContains(t, get(t, c, "machineoperations", name).Object, "status")
		// It does not fire when the Machine appears.
		store(t, c, "machines", object(t, "machines", "no-such-machine", simulated()))
		_, err := c.of("machineoperations").Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		created, first := get(t, c, "machines", "no-such-machine").GetCreationTimestamp(), get(t, c, "machineoperations", name).GetCreationTimestamp()
		if first.Before(&created) {
			refused(t, name, "MachineIsNewer", "was created after this operation")
			next := finished(t, c, newOperation(t, c, "no-such-machine"))
			require.Equal(t, "Complete", phase(next), message(next))
		}
	})
	t.Run("another provider's Machine is left alone", func(t *testing.T) {
		m := machine(t, "spec: {host: {image: img-m, provisioningFormat: CloudInit, external: {provider: Elsewhere}}}")
		other := newOperation(t, c, m)
		finished(t, c, newOperation(t, c, machine(t, simulated()))) // by then it was seen
		op := get(t, c, "machineoperations", other)
		require.NotContains(t, op.Object, "status")
		require.NotContains(t, op.GetAnnotations(), "hostformat.unbounded-cloud.io/started")
	})
	t.Run("other kinds are left alone", func(t *testing.T) {
		m := machine(t, simulated())
		reboot := create(t, "spec: {operationKind: HostReboot, machineRef: "+m+"}")
		finished(t, c, newOperation(t, c, m))
		require.NotContains(t, get(t, c, "machineoperations", reboot).Object, "status")
	})
	t.Run("restored without its status", func(t *testing.T) {
		m := machine(t, simulated())
		done := finished(t, c, newOperation(t, c, m))
		require.Equal(t, "Complete", phase(done))
		require.NoError(t, c.of("machineoperations").Delete(t.Context(), done.GetName(), metav1.DeleteOptions{}))
		restored := done.DeepCopy()
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"} {
			delete(restored.Object["metadata"].(map[string]any), field)
		}
		_, err := c.of("machineoperations").Create(t.Context(), restored, metav1.CreateOptions{})
		require.NoError(t, err)
		refused(t, done.GetName(), "RestoredCopy", "this is a copy of the operation with UID "+string(done.GetUID()))
		require.Zero(t, calls(t, ours, get(t, c, "machineoperations", done.GetName()), m).ReplaceCalls)
		require.Equal(t, 1, calls(t, ours, done, m).DestructiveCalls)
	})
	t.Run("re-applied over its finished self", func(t *testing.T) {
		m := machine(t, simulated())
		done := finished(t, c, newOperation(t, c, m))
		out, err := ours.Kubectl(t.Context(), encode(t, done.Object), "apply", "--force-conflicts", "--server-side", "-f", "-")
		if err != nil {
			require.Contains(t, out, "managedFields")
			clean := done.DeepCopy()
			clean.SetManagedFields(nil)
			out, err = ours.Kubectl(t.Context(), encode(t, clean.Object), "apply", "--force-conflicts", "--server-side", "-f", "-")
			require.NoError(t, err, out)
		}
		finished(t, c, newOperation(t, c, machine(t, simulated()))) // by then it was seen
		require.Equal(t, done.Object["status"], get(t, c, "machineoperations", done.GetName()).Object["status"])
		require.Equal(t, 1, calls(t, ours, done, m).DestructiveCalls)
	})
	t.Run("its status lost", func(t *testing.T) {
		m := machine(t, simulated())
		name := uniqueName()
		u := object(t, "machineoperations", name, "spec: {operationKind: HostReboot, machineRef: "+m+"}")
		created, err := c.of("machineoperations").Create(t.Context(), u, metav1.CreateOptions{})
		require.NoError(t, err)
		patch := `{"metadata":{"annotations":{"hostformat.unbounded-cloud.io/started":"` + string(created.GetUID()) + `"}},"spec":{"operationKind":"HostReplace"}}`
		_, err = c.of("machineoperations").Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		refused(t, name, "RestoredCopy", "lost its record")
	})
	t.Run("expired", func(t *testing.T) {
		m := machine(t, simulated())
		soon := create(t, "spec: {operationKind: HostReplace, machineRef: "+m+", ttlSecondsAfterFinished: 0}")
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			_, err := c.of("machineoperations").Get(t.Context(), soon, metav1.GetOptions{})
			assert.True(collect, apierrors.IsNotFound(err))
		}, patience, interval)
		kept := finished(t, c, create(t, "spec: {operationKind: HostReplace, machineRef: "+m+", ttlSecondsAfterFinished: 2147483647}"))
		require.Equal(t, "Complete", phase(kept))
		require.True(t, strings.HasPrefix(message(kept), "the host was replaced"))
	})
	t.Run("one that failed without a call does not expire", func(t *testing.T) {
		m := machine(t, strings.Replace(simulated(), "CloudInit", "Ignition", 1))
		name := create(t, "spec: {operationKind: HostReplace, machineRef: "+m+", ttlSecondsAfterFinished: 0}")
		require.Equal(t, "IgnitionNotDeliverable", reason(finished(t, c, name)))
		again := create(t, "spec: {operationKind: HostReplace, machineRef: "+machine(t, simulated())+", ttlSecondsAfterFinished: 0}")
		require.EventuallyWithT(t, func(collect *assert.CollectT) { // by then the first one has had its time
			_, err := c.of("machineoperations").Get(t.Context(), again, metav1.GetOptions{})
			assert.True(collect, apierrors.IsNotFound(err))
		}, patience, interval)
		require.Equal(t, "IgnitionNotDeliverable", reason(get(t, c, "machineoperations", name)))
	})
}
