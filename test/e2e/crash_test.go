package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Two targets that keep nothing for themselves: a repeated key acts again.
const forgetful = "--simulated-provider=forget-keys"

func newMachine(t *testing.T, c client) string {
	t.Helper()
	name := uniqueName()
	store(t, c, "machines", object(t, "machines", name, "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}"))
	return name
}

// The process is killed at every write that it makes, once before the API
// server sees it and once after, and started again: one act a target, whatever
// the provider forgets, and the pair stays as it was first frozen.
func TestCrashAtEveryStep(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	for _, how := range []fault{drop, forwardThenDrop} {
		for step := 1; ; step++ {
			crashed := false
			t.Run(fmt.Sprintf("%s write %d", map[fault]string{drop: "before", forwardThenDrop: "after"}[how], step), func(t *testing.T) {
				machine := newMachine(t, c)
				p := newProxy(t, ours)
				var running *controllers
				var mu sync.Mutex
				writes, path := 0, ""
				p.judge = func(r *http.Request) fault {
					if strings.Contains(r.URL.Path, "/events") {
						return pass
					}
					if writes++; writes == step {
						crashed, path = true, r.Method+" "+r.URL.Path
						return how
					}
					return pass
				}
				p.afterDrop = func() {
					mu.Lock()
					defer mu.Unlock()
					running.kill()
				}
				op := newOperation(t, c, machine)
				mu.Lock()
				running = startControllers(t, ours, p.kubeconfig, "hostreplace", forgetful)
				mu.Unlock()
				require.EventuallyWithT(t, func(collect *assert.CollectT) {
					p.mu.Lock()
					defer p.mu.Unlock()
					assert.True(collect, crashed || phase(get(t, c, "machineoperations", op)) == "Complete")
				}, patience, interval)
				if crashed {
					t.Logf("killed at %s", path)
					<-running.done
					p.on(nil)
					startControllers(t, ours, p.kubeconfig, "hostreplace", forgetful)
				}
				done := finished(t, c, op)
				require.Equal(t, "Complete", phase(done), message(done))
				require.Equal(t, 1, calls(t, ours, done, machine).DestructiveCalls)
				require.Equal(t, "img-m", calls(t, ours, done, machine).Image)
			})
			if !crashed {
				require.Greater(t, step, 6, "freeze, mark, attempt, two of the provider, answer, finish")
				break
			}
		}
	}
}

// The process is killed a hundred times at random moments while operations
// come in.
func TestCrashAtRandom(t *testing.T) {
	needsLocal(t)
	const rounds = 100
	c := newClient(t, ours)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	machines, operations := map[string]string{}, []string{}
	pairs := newPairRecorder(t, c)
	for range rounds {
		machine := newMachine(t, c)
		name := newOperation(t, c, machine)
		machines[name] = machine
		operations = append(operations, name)
		running := startControllers(t, ours, ours.Kubeconfig, "hostreplace", forgetful+",delay=20ms")
		select { // not a wait for something to happen, but the moment of the crash
		case <-running.done:
			t.Fatal(running.log.String())
		case <-time.After(time.Duration(100+random.IntN(500)) * time.Millisecond):
		}
		running.kill()
	}
	startControllers(t, ours, ours.Kubeconfig, "hostreplace", forgetful)
	for _, name := range operations {
		op := finished(t, c, name)
		require.Equal(t, "Complete", phase(op), message(op))
		require.Equal(t, 1, calls(t, ours, op, machines[name]).DestructiveCalls, name)
	}
	pairs.requireConstant(t, operations)
}

// pairRecorder watches operations and keeps every pair that they ever had.
type pairRecorder struct {
	mu    sync.Mutex
	pairs map[string]map[string]bool
}

func newPairRecorder(t *testing.T, c client) *pairRecorder {
	t.Helper()
	p := &pairRecorder{pairs: map[string]map[string]bool{}}
	watch, err := c.of("machineoperations").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	go func() {
		for event := range watch.ResultChan() {
			op, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			targets, _, _ := unstructured.NestedSlice(op.Object, "status", "targets")
			for _, target := range targets {
				input, _ := json.Marshal(target.(map[string]any)["input"])
				p.mu.Lock()
				if p.pairs[op.GetName()] == nil {
					p.pairs[op.GetName()] = map[string]bool{}
				}
				p.pairs[op.GetName()][string(input)] = true
				p.mu.Unlock()
			}
		}
	}()
	t.Cleanup(watch.Stop)
	return p
}

func (p *pairRecorder) requireConstant(t *testing.T, operations []string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range operations {
		require.Len(t, p.pairs[name], 1, "the pair of %s is the same to the byte, in every version", name)
	}
}

// Status writes that are answered by a conflict, by an error, or by nothing,
// whether or not they were stored: still one act.
func TestStatusWritesThatFail(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	for name, how := range map[string]fault{"conflict": conflict, "server error": serverError, "silence": drop, "stored, and silence": forwardThenDrop} {
		t.Run(name, func(t *testing.T) {
			// One at a time: each process takes every operation that there is.
			machine := newMachine(t, c)
			p := newProxy(t, ours)
			writes := 0
			p.judge = func(r *http.Request) fault { // every other one
				if isStatusWrite(r) {
					if writes++; writes%2 == 1 {
						return how
					}
				}
				return pass
			}
			op := newOperation(t, c, machine)
			startControllers(t, ours, p.kubeconfig, "hostreplace", forgetful)
			done := finished(t, c, op)
			require.Equal(t, "Complete", phase(done), message(done))
			require.Equal(t, 1, calls(t, ours, done, machine).DestructiveCalls)
			p.mu.Lock()
			defer p.mu.Unlock()
			require.Greater(t, writes, 3)
		})
	}
}

// A provider that acts and loses the answer, or fails before it acts.
func TestProviderThatFails(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	for options, entries := range map[string]int{"forget-keys,lose-answer": 1, "forget-keys,fail=2": 3, "delay=1s": 1} {
		t.Run(options, func(t *testing.T) {
			machine := newMachine(t, c)
			op := newOperation(t, c, machine)
			startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider="+options)
			done := finished(t, c, op)
			require.Equal(t, "Complete", phase(done), message(done))
			record := calls(t, ours, done, machine)
			require.Equal(t, 1, record.DestructiveCalls)
			require.Equal(t, entries, record.ReplaceCalls)
			require.Equal(t, int64(entries), targetOf(t, done, 0)["attempts"])
		})
	}
}

// Two processes without leader election, one of them paused in mid-call: with
// keys recognised, one act.
func TestTwoProcesses(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	machine := newMachine(t, c)
	first := startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=delay=2s")
	name := newOperation(t, c, machine)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Equal(collect, 1, calls(t, ours, get(t, c, "machineoperations", name), machine).ReplaceCalls)
	}, patience, interval)
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGSTOP))
	second := startControllers(t, ours, ours.Kubeconfig, "hostreplace")
	done := finished(t, c, name)
	require.Equal(t, "Complete", phase(done), message(done))
	second.kill()
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGCONT))
	// It goes on with the call that it was in, whose time is long up. Another
	// operation that it then takes two seconds for is proof that it is through.
	finished(t, c, newOperation(t, c, newMachine(t, c)))
	require.Equal(t, 1, calls(t, ours, done, machine).DestructiveCalls)
	require.Equal(t, done.Object["status"], get(t, c, "machineoperations", name).Object["status"])
}

// Between freeze and call the Machine goes, is another one, or says another
// provider: no call. An edit of its image changes nothing.
func TestPins(t *testing.T) {
	needsLocal(t)
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
		}, "ProviderChanged", `frozen for providerID "chassis-1", and the Machine now says "chassis-2"`},
		"image and format": {func(t *testing.T, machine string) {
			require.NoError(t, patchSpec(t, c, machine, `{"host":{"image":"img-new","provisioningFormat":"Ignition"}}`))
		}, "Replaced", "the host was replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := newMachine(t, c)
			p := newProxy(t, ours)
			stopped := make(chan struct{})
			var once sync.Once
			p.judge = func(r *http.Request) fault {
				// Everything after the freeze waits for the change.
				if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/machineoperations/") && !isStatusWrite(r) {
					once.Do(func() { close(stopped) })
					return conflict
				}
				return pass
			}
			op := newOperation(t, c, machine)
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

func patchSpec(t *testing.T, c client, machine, spec string) error {
	t.Helper()
	_, err := c.of("machines").Patch(context.Background(), machine, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
	return err
}

// An operation that is deleted before the call makes none; one that is deleted
// during the call leaves its outcome with the Machine.
func TestOperationDeleted(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	t.Run("before the call", func(t *testing.T) {
		machine := newMachine(t, c)
		p := newProxy(t, ours)
		stopped := make(chan struct{})
		var once sync.Once
		p.judge = func(r *http.Request) fault {
			if r.Method == http.MethodPatch && !isStatusWrite(r) {
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
		// The same name again is another operation, which starts from nothing.
		again, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineRef: "+machine+"}"), metav1.CreateOptions{})
		require.NoError(t, err)
		done := finished(t, c, name)
		require.Equal(t, again.GetUID(), done.GetUID())
		require.Equal(t, 1, calls(t, ours, done, machine).DestructiveCalls)
		require.Zero(t, calls(t, ours, op, machine).ReplaceCalls)
	})
	t.Run("during the call", func(t *testing.T) {
		machine := newMachine(t, c)
		name := newOperation(t, c, machine)
		startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=delay=1s")
		var op *unstructured.Unstructured
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			op = get(t, c, "machineoperations", name)
			assert.Equal(collect, 1, calls(t, ours, op, machine).ReplaceCalls)
		}, patience, interval)
		require.NoError(t, c.of("machineoperations").Delete(t.Context(), name, metav1.DeleteOptions{}))
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			out, err := ours.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector=involvedObject.name="+machine, "-o", "jsonpath={.items[*].message}")
			assert.NoError(collect, err)
			assert.Contains(collect, out, "MachineOperation "+name+" was deleted or ended by others during its call: stage Replacing")
		}, patience, interval)
		require.Equal(t, 1, calls(t, ours, op, machine).DestructiveCalls)
	})
}
