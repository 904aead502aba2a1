package e2e

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/test/local"
)

// memoryLimit is that of the container in manifests/standalone, in MiB.
const memoryLimit = 512

// A history of finished operations costs the controllers neither the memory of
// their container nor the time in which they freeze an operation.
func TestHistory(t *testing.T) {
	needsLocal(t)
	const targets = 700
	stages, machines, rounds := []int{40}, 100, 1
	proof := os.Getenv("HOSTFORMAT_PROOF") != ""
	if proof {
		stages, machines, rounds = []int{20, 200, 2_000}, targets, 5
	}
	// The history has a cluster of its own: no other test is slowed down, and
	// the cluster of all tests is the one without a history.
	cluster, err := local.Start(t.Context(), local.Options{Log: &local.Log{}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Stop()) })

	stored := 0
	for _, operations := range stages {
		storeHistory(t, newClient(t, cluster), stored, operations, targets)
		stored = operations
		// The controllers read the history at their start: from a stream, or
		// in pages from an API server that does not stream.
		for mode, streams := range map[string]string{"streamed": "true", "in pages": "false"} {
			t.Run(fmt.Sprintf("%d operations %s", operations, mode), func(t *testing.T) {
				t.Setenv("KUBE_FEATURE_WatchListClient", streams)
				without, with := newFreezing(t, ours, machines), newFreezing(t, cluster, machines)
				for range rounds {
					without.round(t)
					with.round(t)
				}
				peak, peakWithout := with.stop(t), without.stop(t)
				fmt.Printf("history: %d operations of %d targets, %s: at most %d MiB (%d without), %d Machines frozen in %v (%v without)\n",
					operations, targets, mode, peak, peakWithout, machines, with.took, without.took)
				require.Less(t, peak, int64(memoryLimit), "MiB")
				if proof { // one round each, while the controllers start, proves nothing
					require.LessOrEqual(t, slices.Min(with.took).Seconds(), 2*slices.Min(without.took).Seconds())
				}
			})
		}
	}
}

// storeHistory stores finished operations, numbered from one up to another.
// Each has a target of half a kilobyte for each of its Machines.
func storeHistory(t *testing.T, c client, from, to, targets int) {
	t.Helper()
	start := time.Now()
	var size atomic.Int64
	concurrently(t, to-from, func(i int) error {
		name := fmt.Sprintf("history-%05d", from+i)
		op := object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {history: "+name+"}}}")
		if _, err := c.of("machineoperations").Create(t.Context(), op, metav1.CreateOptions{}); err != nil {
			return err
		}
		status := encode(t, map[string]any{"status": finishedStatus(targets)})
		op, err := c.of("machineoperations").Patch(t.Context(), name, types.MergePatchType, status, metav1.PatchOptions{}, "status")
		if err == nil {
			size.Store(int64(len(encode(t, op))))
		}
		return err
	})
	fmt.Printf("history: %d operations of %d kB stored in %s\n", to-from, size.Load()/1000, time.Since(start).Round(time.Second))
}

// finishedStatus is what the controllers leave of an operation that has replaced
// its hosts.
func finishedStatus(targets int) map[string]any {
	now := time.Now().UTC().Format(time.RFC3339)
	condition := func(kind, reason string) map[string]any {
		return map[string]any{"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now}
	}
	var all []any
	for i := range targets {
		id := fmt.Sprintf("chassis-%08d", i)
		all = append(all, map[string]any{
			"machineRef": fmt.Sprintf("rack-%03d-node-%03d", i/40, i%40),
			"phase":      "Complete", "stage": "Done", "message": "the host was replaced",
			"startedAt": now, "completedAt": now, "attempts": int64(1), "lastAttemptAt": now,
			"providerOperation": map[string]any{"provider": "Simulated", "operationID": "simulated-" + id},
			"input": map[string]any{
				"hostImage": "registry.example.com/images/ubuntu@sha256:4bc453b53cb3d914b45f4b250294236adba2c0e09ff6f03793949e7e39fd4cc1", "provisioningFormat": "CloudInit",
				"machineUID": fmt.Sprintf("9b1deb4d-3b7d-4bad-9bdd-%012d", i), "provider": "Simulated", "providerID": id,
			},
		})
	}
	return map[string]any{
		"phase": "Complete", "startedAt": now, "completedAt": now, "targets": all,
		"conditions": []any{condition("Frozen", "Resolved"), condition("Complete", "Replaced")},
	}
}

// freezing measures how long running controllers take to freeze an operation.
type freezing struct {
	client
	running  *controllers
	machines int
	took     []time.Duration
}

func newFreezing(t *testing.T, cluster *local.Cluster, machines int) *freezing {
	t.Helper()
	return &freezing{
		client: newClient(t, cluster), machines: machines,
		running: startControllers(t, cluster, cluster.Kubeconfig, "hostreplace", "--simulated-provider=dir="+t.TempDir()),
	}
}

// round freezes one operation on Machines of its own, and measures from its
// creation to the write that freezes it.
func (f *freezing) round(t *testing.T) {
	t.Helper()
	rack := uniqueName()
	concurrently(t, f.machines, func(i int) error {
		name := fmt.Sprintf("%s-%03d", rack, i)
		u := object(t, "machines", name, fmt.Sprintf("spec: {host: {image: img, provisioningFormat: CloudInit, external: {provider: Simulated, providerID: %s}}}", name))
		u.SetLabels(map[string]string{"rack": rack})
		_, err := f.of("machines").Create(t.Context(), u, metav1.CreateOptions{})
		return err
	})
	operations := f.of("machineoperations")
	start := time.Now()
	created, err := operations.Create(t.Context(), object(t, "machineoperations", rack, "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: "+rack+"}}}"), metav1.CreateOptions{})
	require.NoError(t, err)
	wait := int64(10 * time.Minute / time.Second)
	events, err := operations.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + rack, ResourceVersion: created.GetResourceVersion(), TimeoutSeconds: &wait})
	require.NoError(t, err)
	frozen := false
	for event := range events.ResultChan() {
		op, ok := event.Object.(*unstructured.Unstructured)
		require.True(t, ok, "%v", event.Object)
		require.NotEqual(t, "Failed", phase(op), message(op))
		if frozen = conditionOf(op, "Frozen")["status"] == "True"; frozen {
			break
		}
	}
	f.took = append(f.took, time.Since(start).Round(time.Millisecond))
	events.Stop()
	require.True(t, frozen, "not frozen in time")
	// What follows is not measured: stop it.
	_, err = operations.Patch(t.Context(), rack, types.MergePatchType, []byte(`{"status":{"phase":"Failed","message":"stopped by hand"}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	require.NoError(t, f.of("machines").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "rack=" + rack}))
}

// stop ends the controllers and returns the most memory that they had, in MiB.
func (f *freezing) stop(t *testing.T) int64 {
	t.Helper()
	require.NoError(t, f.running.cmd.Process.Signal(syscall.SIGTERM))
	<-f.running.done
	return f.running.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss / 1024
}

// concurrently calls do for each number below n, some at a time.
func concurrently(t *testing.T, n int, do func(int) error) {
	t.Helper()
	work, failures := make(chan int), make(chan error, n)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range work {
				if err := do(i); err != nil {
					failures <- err
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	group.Wait()
	close(failures)
	require.NoError(t, <-failures)
}
