package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/internal/operation/simulated"
	"unbounded-cloud.io/hostformat/test/local"
)

// roundsOf is how many rounds a test makes: few with the others, and all of them
// for make proof.
func roundsOf(few, proof int) int {
	if os.Getenv("HOSTFORMAT_PROOF") != "" {
		return proof
	}
	return few
}

// processPair is two processes that run the controllers without leader election, each
// behind a proxy of its own, whose caches lag. Now and then one of them is killed
// or paused.
type processPair struct {
	t       *testing.T
	cluster *local.Cluster
	random  *rand.Rand
	proxies [2]*proxy
	running [2]*controllers
	args    []string
	killed  int
	paused  int
}

func newPair(t *testing.T, cluster *local.Cluster, lag time.Duration, args ...string) *processPair {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p := &processPair{t: t, cluster: cluster, random: rand.New(rand.NewPCG(seed, 0)), args: args}
	for i := range p.proxies {
		p.proxies[i] = newProxy(t, cluster)
		p.proxies[i].lag = lag
		p.start(i)
	}
	return p
}

func (p *processPair) start(i int) {
	p.running[i] = startControllers(p.t, p.cluster, p.proxies[i].kubeconfig, "hostreplace", p.args...)
}

// disturb kills a process and starts it again, or pauses it for a while, at a
// random moment.
func (p *processPair) disturb() {
	p.wait(1500)
	i := p.random.IntN(2)
	if p.random.IntN(2) == 0 {
		p.killed++
		p.running[i].kill()
		p.start(i)
		return
	}
	p.paused++
	require.NoError(p.t, p.running[i].cmd.Process.Signal(syscall.SIGSTOP))
	p.wait(3000)
	require.NoError(p.t, p.running[i].cmd.Process.Signal(syscall.SIGCONT))
}

// wait is no wait for something to happen: it picks the moment of a disturbance.
func (p *processPair) wait(milliseconds int) {
	<-time.After(time.Duration(p.random.IntN(milliseconds)) * time.Millisecond)
}

// createTogether creates operations at the same moment.
func createTogether(t *testing.T, c client, fields map[string]string) {
	t.Helper()
	var group sync.WaitGroup
	errs := make(chan error, len(fields))
	for name, text := range fields {
		u := object(t, "machineoperations", name, "spec: {operationKind: HostReplace, "+text+"}")
		group.Go(func() {
			_, err := c.of("machineoperations").Create(t.Context(), u, metav1.CreateOptions{})
			errs <- err
		})
	}
	group.Wait()
	for range fields {
		require.NoError(t, <-errs)
	}
}

// long is how long a replacement takes here: longer than it takes the slower of
// two processes to hear of the other operation, which may run once the first has
// finished.
const long = 45 * time.Second

// Two operations for one Machine that are created at the same moment, and two
// processes that lag, are killed and paused: one act, and the other operation
// fails with the name of the winner.
func TestTwoOperationsTwoProcesses(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.takeEarly(t)
	c := newClient(t, ours)
	p := newPair(t, ours, 5*time.Second, "--simulated-provider=duration="+long.String())
	rounds := roundsOf(3, 100)
	var machines []string
	var operations [][2]string
	for range rounds {
		machine, names := newMachine(t, c), [2]string{uniqueName(), uniqueName()}
		createTogether(t, c, map[string]string{names[0]: "machineRef: " + machine, names[1]: "machineRef: " + machine})
		machines, operations = append(machines, machine), append(operations, names)
		p.disturb()
	}
	for i, names := range operations {
		acts, outcomes := 0, map[string]string{}
		winner := ""
		for _, name := range names {
			op := finishedWithin(t, c, name, long+2*patience)
			outcomes[phase(op)] = reason(op) + ": " + message(op)
			acts += calls(t, ours, op, machines[i]).DestructiveCalls
			if phase(op) == "Complete" {
				winner = name
			}
		}
		require.Equal(t, 1, acts, "%v", outcomes)
		require.Equal(t, "Replaced: the host was replaced", outcomes["Complete"])
		require.Contains(t, outcomes["Failed"], fmt.Sprintf("OtherOperation: MachineOperation %q is replacing the host of Machine %q", winner, machines[i]))
	}
	fmt.Printf("claims: %d rounds of two operations on one Machine, two processes (%d killed, %d paused): 1 act each\n", rounds, p.killed, p.paused)
}

// Two operations that select overlapping Machines: one finishes, the other fails
// and names it.
func TestOverlappingSelectors(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.takeEarly(t)
	c := newClient(t, ours)
	p := newPair(t, ours, time.Second, "--simulated-provider=duration="+long.String())
	rounds := roundsOf(3, 100)
	type round struct {
		names    [2]string
		machines []string
	}
	var all []round
	for range rounds {
		r := round{names: [2]string{uniqueName(), uniqueName()}}
		for i := range 5 { // the first selects 0 to 3, the second 1 to 4
			u := object(t, "machines", uniqueName(), "spec: {"+host("image: img-m, provisioningFormat: CloudInit")+"}")
			labels := map[string]string{}
			for n, selected := range [2]bool{i < 4, i > 0} {
				if selected {
					labels[r.names[n]] = "selected"
				}
			}
			u.SetLabels(labels)
			store(t, c, "machines", u)
			r.machines = append(r.machines, u.GetName())
		}
		selected := "parameters: {maxInFlight: '4'}, machineSelector: {matchLabels: {NAME: selected}}"
		createTogether(t, c, map[string]string{
			r.names[0]: strings.ReplaceAll(selected, "NAME", r.names[0]), r.names[1]: strings.ReplaceAll(selected, "NAME", r.names[1])})
		all = append(all, r)
		p.disturb()
	}
	for _, r := range all {
		outcomes, winner := map[string]string{}, ""
		acts := map[string]int{}
		for _, name := range r.names {
			op := finishedWithin(t, c, name, long+2*patience)
			outcomes[phase(op)] = reason(op) + ": " + message(op)
			for _, machine := range r.machines {
				acts[machine] += calls(t, ours, op, machine).DestructiveCalls
			}
			if phase(op) == "Complete" {
				winner = name
			}
		}
		require.Contains(t, outcomes["Complete"], "4 of 4 hosts were replaced", "%v", outcomes)
		require.Contains(t, outcomes["Failed"], fmt.Sprintf("OtherOperation: MachineOperation %q is replacing the host of Machine ", winner))
		replaced := r.machines[:4]
		if winner == r.names[1] {
			replaced = r.machines[1:]
		}
		for _, machine := range r.machines {
			want := 0
			if slices.Contains(replaced, machine) {
				want = 1
			}
			require.Equal(t, want, acts[machine])
		}
	}
	fmt.Printf("claims: %d rounds of two selectors that overlap, two processes (%d killed, %d paused): one finished, one failed\n", rounds, p.killed, p.paused)
}

// A process is paused in mid-call; its operation is deleted, another process
// replaces the host for another operation, and the first process goes on: what it
// was about to install is not installed any more.
func TestPausedInMidCall(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	first, machine, old := pauseInMidCall(t, c)
	gone := get(t, c, "machineoperations", old)
	require.Zero(t, calls(t, ours, gone, machine).DestructiveCalls, "it is in mid-call")
	require.NoError(t, c.of("machineoperations").Delete(t.Context(), old, metav1.DeleteOptions{}))
	require.NoError(t, patchSpec(t, c, machine, `{"host":{"image":"img-new"}}`))
	second := startControllers(t, ours, ours.Kubeconfig, "hostreplace")
	done := finished(t, c, newOperation(t, c, machine))
	require.Equal(t, "Complete", phase(done), message(done))
	second.kill()
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGCONT))
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		out, err := ours.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector=involvedObject.name="+machine, "-o", "jsonpath={.items[*].message}")
		assert.NoError(collect, err)
		assert.Contains(collect, out, "MachineOperation "+old+" was deleted or finished by another client during its call: stage ClaimLost")
	}, patience, interval)
	require.Equal(t, simulated.Record{ReplaceCalls: 1}, calls(t, ours, gone, machine), "the old image is not installed over the new one")
	record := calls(t, ours, done, machine)
	require.Equal(t, []any{1, "img-new", int64(2)}, []any{record.DestructiveCalls, record.Image, record.Fence})
}

// A manifest in a folder that a GitOps tool keeps applied, with a short time to
// live: one call, however often it comes back.
func TestAppliedByAGitOpsTool(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "hostreplace")
	machine, name := newMachine(t, c), uniqueName()
	manifest := encode(t, object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineRef: "+machine+", ttlSecondsAfterFinished: 1}").Object)
	apply := func() string {
		out, err := ours.Kubectl(t.Context(), manifest, "apply", "-f", "-")
		require.NoError(t, err, out)
		return out
	}
	require.Contains(t, apply(), "created")
	first := finished(t, c, name)
	require.Equal(t, "Complete", phase(first), message(first))
	require.EventuallyWithT(t, func(collect *assert.CollectT) { // it expires, and the tool finds it missing
		_, err := c.of("machineoperations").Get(t.Context(), name, metav1.GetOptions{})
		assert.Error(collect, err)
	}, patience, interval)
	require.Contains(t, apply(), "created")
	again := finished(t, c, name)
	require.Equal(t, "NameUsed", reason(again), message(again))
	require.Zero(t, calls(t, ours, again, machine).ReplaceCalls)
	// It has had no call and so does not expire: the tool finds it from now on.
	other := newOperation(t, c, newMachine(t, c))
	finished(t, c, other)
	require.Contains(t, apply(), "unchanged")
	require.Equal(t, again.GetUID(), get(t, c, "machineoperations", name).GetUID())
}
