package e2e

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Snapshots from before the format field, and whole pairs that somebody else
// froze, whatever the Machine says now.
func TestSnapshotsOfOthers(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	startControllers(t, foreign, foreign.Kubeconfig, "hostreplace")
	for name, test := range map[string]struct {
		input, machine, observed string
		acts                     int
		image, says              string
	}{
		"no input":                    {"", "image: img-new, provisioningFormat: CloudInit", "", 1, "", "current image kept, format CloudInit from machine"},
		"an empty input":              {"input: {}", "image: img-new", "CloudInit", 1, "", "current image kept, format CloudInit observed"},
		"image, declared Ignition":    {"input: {hostImage: img-old}", "image: img-new, provisioningFormat: Ignition", "", 0, "", "boots with Ignition"},
		"image, declared CloudInit":   {"input: {hostImage: ' img-old '}", "image: img-new, provisioningFormat: CloudInit", "Ignition", 1, "img-old", "image img-old from snapshot, format CloudInit from machine"},
		"image, observed CloudInit":   {"input: {hostImage: img-old}", "image: img-new", "CloudInit", 1, "img-old", "format CloudInit observed"},
		"image, observed Ignition":    {"input: {hostImage: img-old}", "", "Ignition", 0, "", "must be declared because the host is known to run Ignition and input.hostImage selects"},
		"image, nothing known":        {"input: {hostImage: img-old}", "", "", 1, "img-old", "format CloudInit from legacy fallback"},
		"format alone, a whole pair":  {"input: {provisioningFormat: CloudInit}", "image: img-new, provisioningFormat: Ignition", "Ignition", 1, "", ""},
		"both, a whole pair":          {"input: {hostImage: img-old, provisioningFormat: CloudInit}", "image: img-new, provisioningFormat: Ignition", "Ignition", 1, "img-old", ""},
		"an Ignition pair":            {"input: {hostImage: img-old, provisioningFormat: Ignition}", "", "", 0, "", "boots with Ignition"},
		"a pair with a bad image":     {"input: {hostImage: \"a\\u200bb\", provisioningFormat: CloudInit}", "", "", 0, "", "invisible character U+200B"},
		"a pair with a bad format":    {"input: {hostImage: img-old, provisioningFormat: weird}", "", "", 0, "", `unsupported value "weird"`},
		"a snapshot with a bad image": {"input: {hostImage: \"a\\u200bb\"}", "", "", 0, "", "invisible character U+200B"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := uniqueName()
			u := object(t, "machines", machine, "spec: {"+host(test.machine)+"}")
			if test.observed != "" {
				u.Object["status"] = map[string]any{"observedProvisioningFormat": test.observed}
			}
			// What was stored past every webhook.
			text := "{machineRef: " + machine + ", " + test.input + "}"
			op := object(t, "machineoperations", uniqueName(), "{spec: {operationKind: HostReboot, machineRef: "+machine+"}, status: {targets: ["+text+"]}}")
			if strings.Contains(test.input, `\u200b`) || strings.Contains(test.input, "weird") {
				require.NoError(t, foreign.RemoveWebhook(t.Context()))
				t.Cleanup(func() { require.NoError(t, foreign.InstallWebhook(context.Background())) })
			}
			store(t, c, "machines", u)
			_, err := c.of("machineoperations").Create(t.Context(), op, metav1.CreateOptions{})
			require.NoError(t, err)
			writeStatus(t, c, "machineoperations", op)
			require.NoError(t, pastTheWebhook(t, c, op.GetName()))

			done := finished(t, c, op.GetName())
			record := calls(t, foreign, done, machine)
			require.Equal(t, test.acts, record.DestructiveCalls, "%v", done.Object["status"])
			require.Equal(t, test.acts, record.ReplaceCalls)
			require.Equal(t, test.image, record.Image)
			require.Equal(t, map[bool]string{true: "Complete", false: "Failed"}[test.acts == 1], phase(done))
			if test.acts == 0 {
				require.Contains(t, message(done), test.says)
			}
			if test.acts == 1 && !strings.Contains(test.input, "provisioningFormat") {
				require.Equal(t, "LegacySnapshot", conditionOf(done, "Frozen")["reason"])
				require.NotContains(t, inputOf(t, done), "provisioningFormat", "it is not written back")
			}
		})
	}
}

// pastTheWebhook makes a HostReplace of an operation that has begun, which
// admission would refuse.
func pastTheWebhook(t *testing.T, c client, name string) error {
	t.Helper()
	_, _ = c.cluster.Kubectl(t.Context(), nil, "delete", "validatingwebhookconfiguration", "hostformat")
	t.Cleanup(func() { require.NoError(t, c.cluster.InstallWebhook(context.Background())) })
	var err error
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, err = c.of("machineoperations").Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"operationKind":"HostReplace"}}`), metav1.PatchOptions{})
		assert.NoError(collect, err)
	}, patience, interval)
	return err
}

func conditionOf(op *unstructured.Unstructured, kind string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(op.Object, "status", "conditions")
	for _, condition := range conditions {
		if condition := condition.(map[string]any); condition["type"] == kind {
			return condition
		}
	}
	return nil
}

// What other writers keep in a status survives all of ours: unknown fields, in
// list elements too, their conditions, and integers to the digit.
func TestStatusOfOthersSurvives(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	machine := uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "{spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}, status: {phase: Ready, serial: 9007199254740993, conditions: [{type: Theirs, lastTransitionTime: never}]}}"))
	was := get(t, c, "machines", machine)
	name := newOperation(t, c, machine)
	writeStatus(t, c, "machineoperations", object(t, "machineoperations", name, "status: {serial: 9007199254740993, conditions: [{type: Theirs, status: Maybe, futureKnob: x}]}"))

	startControllers(t, foreign, foreign.Kubeconfig, "hostreplace", "--simulated-provider=duration=3s")
	// As soon as the pair is frozen, another writer adds to its target.
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		op := get(collect, c, "machineoperations", name)
		targets, _, _ := unstructured.NestedSlice(op.Object, "status", "targets")
		if !assert.Len(collect, targets, 1) {
			return
		}
		targets[0].(map[string]any)["serial"] = int64(9223372036854775807)
		targets[0].(map[string]any)["futureKnobs"] = []any{map[string]any{"a": map[string]any{}}}
		_ = unstructured.SetNestedSlice(op.Object, targets, "status", "targets")
		_, err := c.of("machineoperations").UpdateStatus(t.Context(), op, metav1.UpdateOptions{})
		assert.NoError(collect, err)
	}, patience, interval)

	done := finished(t, c, name)
	require.Equal(t, "Complete", phase(done), message(done))
	require.Equal(t, int64(9007199254740993), done.Object["status"].(map[string]any)["serial"])
	require.Equal(t, map[string]any{"type": "Theirs", "status": "Maybe", "futureKnob": "x"}, conditionOf(done, "Theirs"))
	target := targetOf(t, done, 0)
	require.Equal(t, int64(9223372036854775807), target["serial"])
	require.Equal(t, []any{map[string]any{"a": map[string]any{}}}, target["futureKnobs"])
	now := get(t, c, "machines", machine)
	require.Equal(t, was.Object["spec"], now.Object["spec"])
	require.Equal(t, was.Object["status"], now.Object["status"])
}

// A Machine that is listed twice, as older CRDs allow, is replaced once.
func TestMachineListedTwice(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	require.NoError(t, foreign.RemoveWebhook(t.Context()))
	t.Cleanup(func() { require.NoError(t, foreign.InstallWebhook(context.Background())) })
	machine := uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}"))
	target := "{machineRef: " + machine + ", input: {hostImage: img-m, provisioningFormat: CloudInit}}"
	op := object(t, "machineoperations", uniqueName(), "{spec: {operationKind: HostReboot, machineRef: "+machine+"}, status: {targets: ["+target+", "+target+"]}}")
	store(t, c, "machineoperations", op)
	_, err := c.of("machineoperations").Patch(t.Context(), op.GetName(), types.MergePatchType, []byte(`{"spec":{"operationKind":"HostReplace"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	startControllers(t, foreign, foreign.Kubeconfig, "hostreplace", forgetful)
	done := finished(t, c, op.GetName())
	require.Equal(t, "DuplicateTarget", reason(done), message(done))
	require.Equal(t, "Complete", targetOf(t, done, 0)["phase"])
	require.Equal(t, 1, calls(t, foreign, done, machine).DestructiveCalls)
}

// A terminal phase that another writer set meanwhile is never turned back.
func TestTerminalPhaseWins(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	machine := uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}"))
	p := newProxy(t, foreign)
	var once sync.Once
	name := newOperation(t, c, machine)
	p.judge = func(r *http.Request) fault {
		if isStatusWrite(r) && len(targetsNow(c, name)) > 0 {
			once.Do(func() { // between our read and our write
				_, _ = c.of("machineoperations").Patch(context.Background(), name, types.MergePatchType, []byte(`{"status":{"phase":"Failed","message":"stopped by hand"}}`), metav1.PatchOptions{}, "status")
			})
		}
		return pass
	}
	running := startControllers(t, foreign, p.kubeconfig, "hostreplace")
	op := finished(t, c, name)
	other := uniqueName()
	store(t, c, "machines", object(t, "machines", other, "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}"))
	finished(t, c, newOperation(t, c, other)) // by then it was seen again
	require.Equal(t, "stopped by hand", message(op))
	op = get(t, c, "machineoperations", name)
	require.Equal(t, "Failed", phase(op))
	require.Equal(t, "stopped by hand", message(op))
	require.Zero(t, calls(t, foreign, op, machine).ReplaceCalls, running.log.String())
}

func targetsNow(c client, name string) []any {
	op, err := c.of("machineoperations").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	targets, _, _ := unstructured.NestedSlice(op.Object, "status", "targets")
	return targets
}

// Over CRDs that would drop what is frozen, nothing is called.
func TestSchemaTooOld(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	removeFromSchema(t, c, "machineoperations", "status properties targets items properties input properties machineUID")
	machine := uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}"))
	startControllers(t, foreign, foreign.Kubeconfig, "hostreplace")
	done := finished(t, c, newOperation(t, c, machine))
	require.Equal(t, "Failed", phase(done))
	require.Equal(t, "SchemaTooOld", reason(done))
	require.Contains(t, message(done), "upgrade the CRDs first")
	require.NotContains(t, done.Object["status"], "targets")
	require.Zero(t, calls(t, foreign, done, machine).ReplaceCalls)
}

// With no webhook at all, the reconciler alone still trims, refuses what
// cannot be delivered, and never crosses a pair.
func TestWithoutWebhook(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	require.NoError(t, foreign.RemoveWebhook(t.Context()))
	t.Cleanup(func() { require.NoError(t, foreign.InstallWebhook(context.Background())) })
	startControllers(t, foreign, foreign.Kubeconfig, "hostreplace", "--simulated-provider=duration=1s")
	for name, test := range map[string]struct {
		host, observed string
		acts           int
		reason         string
	}{
		"trims":                    {`image: " img-m\n", provisioningFormat: CloudInit`, "Ignition", 1, "Replaced"},
		"never calls for Ignition": {"image: img-m, provisioningFormat: Ignition", "", 0, "IgnitionNotDeliverable"},
		"asks for a declaration":   {"image: img-m", "Ignition", 0, "FormatNotDeclared"},
		"refuses a bad format":     {"image: img-m, provisioningFormat: cloud-init", "", 0, "InvalidFormat"},
		"refuses a bad image":      {`image: "img\u200bm", provisioningFormat: CloudInit`, "", 0, "InvalidImage"},
		"refuses a bad report":     {"image: img-m", "weird", 0, "InvalidFormat"},
		"whole fleet":              {"", "", 0, "InvalidSelection"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := uniqueName()
			u := object(t, "machines", machine, "spec: {"+host(test.host)+"}")
			if test.observed != "" {
				u.Object["status"] = map[string]any{"observedProvisioningFormat": test.observed}
			}
			op := uniqueName()
			if test.reason == "InvalidSelection" {
				machines, err := c.of("machines").List(t.Context(), metav1.ListOptions{})
				require.NoError(t, err)
				for _, m := range machines.Items {
					require.NoError(t, c.of("machines").Delete(t.Context(), m.GetName(), metav1.DeleteOptions{}))
				}
				store(t, c, "machines", u)
				_, err = c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", op, "spec: {operationKind: HostReplace, machineSelector: {}}"), metav1.CreateOptions{})
				require.NoError(t, err)
			} else {
				store(t, c, "machines", u)
				op = newOperation(t, c, machine)
			}
			done := finished(t, c, op)
			require.Equal(t, test.reason, reason(done), message(done))
			record := calls(t, foreign, done, machine)
			require.Equal(t, test.acts, record.ReplaceCalls)
			if test.acts == 1 {
				require.Equal(t, []string{"img-m", "CloudInit"}, []string{record.Image, record.Format})
			}
		})
	}
}
