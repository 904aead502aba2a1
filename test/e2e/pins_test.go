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

// Between freeze and call the Machine goes, is another one, or says another
// provider: no call. An edit of its image changes nothing.
func TestPins(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for name, test := range map[string]struct {
		change        func(*testing.T, string)
		reason, words string
	}{
		"deleted": {func(t *testing.T, machine string) {
			require.NoError(t, c.of("machines").Delete(t.Context(), machine, metav1.DeleteOptions{}))
		}, "MachineNotFound", "does not exist any more"},
		"being deleted": {func(t *testing.T, machine string) {
			_, err := c.of("machines").Patch(t.Context(), machine, types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/keep"]}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			require.NoError(t, c.of("machines").Delete(t.Context(), machine, metav1.DeleteOptions{}))
		}, "MachineDeleting", "is being deleted"},
		"created again": {func(t *testing.T, machine string) {
			require.NoError(t, c.of("machines").Delete(t.Context(), machine, metav1.DeleteOptions{}))
			store(t, c, "machines", object(t, "machines", machine, "{spec: {"+host("image: img-m, provisioningFormat: Ignition")+"}, "+ignition+"}"))
		}, "MachineReplaced", "the machine was replaced: the pair was frozen for a Machine of this name with UID"},
		"provider": {func(t *testing.T, machine string) {
			require.NoError(t, patchSpec(t, c, machine, `{"host":{"external":{"provider":"Elsewhere"}}}`))
		}, "ProviderChanged", `frozen for provider "Simulated", and the Machine now says "Elsewhere"`},
		"providerID": {func(t *testing.T, machine string) {
			require.NoError(t, patchSpec(t, c, machine, `{"host":{"external":{"providerID":"chassis-2"}}}`))
		}, "ProviderChanged", `and the Machine now says "chassis-2"`},
		"image and format": {func(t *testing.T, machine string) {
			require.NoError(t, patchSpec(t, c, machine, `{"host":{"image":"img-new","provisioningFormat":"Ignition"}}`))
		}, "Replaced", "the host was replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := newMachine(t, c)
			p := newProxy(t, ours)
			stopped := make(chan struct{})
			var once sync.Once
			op := newOperation(t, c, machine)
			p.judge = func(r *http.Request) fault {
				// Everything after the freeze waits for the change.
				if isMark(r) && strings.HasSuffix(r.URL.Path, "/"+op) {
					once.Do(func() { close(stopped) })
					return conflict
				}
				return pass
			}
			startControllers(t, ours, p.kubeconfig, "hostreplace")
			<-stopped
			frozen := get(t, c, "machineoperations", op)
			test.change(t, machine)
			p.on(nil)
			done := finished(t, c, op)
			require.Equal(t, test.reason, reason(done))
			require.Contains(t, message(done), test.words)
			require.Equal(t, inputOf(t, frozen), inputOf(t, done))
			record := calls(t, ours, done, machine)
			if test.reason == "Replaced" {
				require.Equal(t, []any{1, "img-m", "CloudInit"}, []any{record.DestructiveCalls, record.Image, record.Format})
			} else {
				require.Equal(t, "Failed", phase(done))
				require.Zero(t, record.ReplaceCalls)
			}
		})
	}
}

// isMark reports whether a request marks an operation as started.
func isMark(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/machineoperations/") && !strings.HasSuffix(r.URL.Path, "/status")
}

func patchSpec(t *testing.T, c client, machine, spec string) error {
	t.Helper()
	_, err := c.of("machines").Patch(context.Background(), machine, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
	return err
}

// An operation that is deleted before the call makes none; one that is deleted
// during the call leaves its outcome with the Machine.
func TestOperationDeleted(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	t.Run("before the call", func(t *testing.T) {
		machine := newMachine(t, c)
		p := newProxy(t, ours)
		stopped := make(chan struct{})
		var once sync.Once
		p.judge = func(r *http.Request) fault {
			if isMark(r) {
				once.Do(func() { close(stopped) })
				return conflict
			}
			return pass
		}
		name := newOperation(t, c, machine)
		startControllers(t, ours, p.kubeconfig, "hostreplace")
		<-stopped
		op := get(t, c, "machineoperations", name)
		require.NoError(t, c.of("machineoperations").Delete(t.Context(), name, metav1.DeleteOptions{}))
		p.on(nil)
		// The same name again is another operation, and no new order: whether the
		// first one called is not known any more.
		again, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineRef: "+machine+"}"), metav1.CreateOptions{})
		require.NoError(t, err)
		done := finished(t, c, name)
		require.Equal(t, again.GetUID(), done.GetUID())
		require.Equal(t, "NameUsed", reason(done), message(done))
		require.Contains(t, message(done), "UID "+string(op.GetUID())+", has claimed the host of Machine \""+machine+"\" before")
		require.Zero(t, calls(t, ours, done, machine).ReplaceCalls)
		require.Zero(t, calls(t, ours, op, machine).ReplaceCalls)
		other := finished(t, c, newOperation(t, c, machine))
		require.Equal(t, "Complete", phase(other), message(other))
	})
	t.Run("during the call", func(t *testing.T) {
		machine := newMachine(t, c)
		name := newOperation(t, c, machine)
		startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=delay=5s")
		var op *unstructured.Unstructured
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			op = get(collect, c, "machineoperations", name)
			assert.Equal(collect, 1, calls(collect, ours, op, machine).ReplaceCalls)
		}, patience, interval)
		require.NoError(t, c.of("machineoperations").Delete(t.Context(), name, metav1.DeleteOptions{}))
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			out, err := ours.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector=involvedObject.name="+machine, "-o", "jsonpath={.items[*].message}")
			assert.NoError(collect, err)
			assert.Contains(collect, out, "MachineOperation "+name+" was deleted or finished by another client during its call: stage Replacing")
		}, patience, interval)
		require.Equal(t, 1, calls(t, ours, op, machine).DestructiveCalls)
	})
}
