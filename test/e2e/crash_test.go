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
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/watch"
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
	ours := ourCRDs.take(t)
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
					assert.True(collect, crashed || phase(get(collect, c, "machineoperations", op)) == "Complete")
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

// The process is killed at random moments while operations come in, also while it
// claims their hosts: one act each, and the claims that it left behind block
// nobody.
func TestCrashAtRandom(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	rounds := roundsOf(10, 100)
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
		// Its last attempt may be one of many, after as long a wait as there is.
		op := finishedWithin(t, c, name, patience+5*time.Minute)
		require.Equal(t, "Complete", phase(op), message(op))
		require.Equal(t, 1, calls(t, ours, op, machines[name]).DestructiveCalls, name)
	}
	pairs.requireConstant(t, operations)
	var next []string
	for _, name := range operations {
		next = append(next, newOperation(t, c, machines[name]))
	}
	for i, name := range next {
		op := finishedWithin(t, c, name, 2*patience)
		require.Equal(t, "Complete", phase(op), message(op))
		require.Equal(t, 1, calls(t, ours, op, machines[operations[i]]).DestructiveCalls)
	}
	fmt.Printf("claims: %d rounds with SIGKILL, a provider that forgets keys: 1 act each, and 1 more for each host afterwards\n", rounds)
}

// pairRecorder watches operations and keeps every pair that they ever had.
type pairRecorder struct {
	mu    sync.Mutex
	pairs map[string]map[string]bool
	ended map[string]bool // it has seen the last change of a pair that there can be
}

func newPairRecorder(t *testing.T, c client) *pairRecorder {
	t.Helper()
	p := &pairRecorder{pairs: map[string]map[string]bool{}, ended: map[string]bool{}}
	operations := c.of("machineoperations")
	list, err := operations.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	// An API server ends a watch now and then.
	watcher, err := watch.NewRetryWatcherWithContext(t.Context(), list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			return operations.Watch(ctx, options)
		}})
	require.NoError(t, err)
	go func() {
		for event := range watcher.ResultChan() {
			op, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			targets, _, _ := unstructured.NestedSlice(op.Object, "status", "targets")
			p.mu.Lock()
			for _, target := range targets {
				input, _ := json.Marshal(target.(map[string]any)["input"])
				if p.pairs[op.GetName()] == nil {
					p.pairs[op.GetName()] = map[string]bool{}
				}
				p.pairs[op.GetName()][string(input)] = true
			}
			p.ended[op.GetName()] = phase(op) == "Complete"
			p.mu.Unlock()
		}
	}()
	t.Cleanup(watcher.Stop)
	return p
}

// requireConstant requires that operations, all complete, had one pair each.
func (p *pairRecorder) requireConstant(t *testing.T, operations []string) {
	t.Helper()
	require.EventuallyWithT(t, func(collect *assert.CollectT) { // it is told of them later than we read them
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, name := range operations {
			assert.True(collect, p.ended[name], name)
		}
	}, patience, interval)
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
	ours := ourCRDs.take(t)
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
	ours := ourCRDs.take(t)
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

// pauseInMidCall pauses a process that has entered a call of the provider and has
// not replaced the host yet. It returns the process, the Machine and the
// operation.
func pauseInMidCall(t *testing.T, c client) (paused *controllers, machine, operation string) {
	t.Helper()
	machine = newMachine(t, c)
	paused = startControllers(t, c.cluster, c.cluster.Kubeconfig, "hostreplace", "--simulated-provider=delay=2s")
	operation = newOperation(t, c, machine)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Equal(collect, 1, calls(collect, c.cluster, get(collect, c, "machineoperations", operation), machine).ReplaceCalls)
	}, patience, interval)
	require.NoError(t, paused.cmd.Process.Signal(syscall.SIGSTOP))
	return paused, machine, operation
}

// Two processes without leader election, one of them paused in mid-call: with
// keys recognised, one act.
func TestTwoProcesses(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	first, machine, name := pauseInMidCall(t, c)
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
