package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
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
	"k8s.io/apimachinery/pkg/util/uuid"

	"unbounded-cloud.io/hostformat/test/local"
)

// memoryLimit is that of the container in manifests/standalone, in MiB.
const memoryLimit = 512

// A history of finished operations costs the controllers neither the memory of
// their container nor the time in which they freeze an operation.
//
// With HOSTFORMAT_PROOF set, the history is large, and no other test runs beside
// this one, which measures. API servers then run without a watch cache, which would
// take more memory than most machines have to spare.
func TestHistory(t *testing.T) {
	needsLocal(t)
	const targets = 700
	stages, machines, rounds := []int{20}, 100, 1
	var cluster, baseline *local.Cluster
	proof := os.Getenv("HOSTFORMAT_PROOF") != ""
	if proof {
		stages, machines, rounds = []int{20, 200, 2_000}, targets, 5
		options := local.Options{APIServer: map[string]string{"watch-cache": "false"}}
		baseline, cluster = start(t, options), start(t, options)
	} else {
		cluster = takeOwn(t, local.Options{})
		baseline = ourCRDs.takeMore(t)
	}

	stored := 0
	for _, operations := range stages {
		storeHistory(t, cluster, stored, operations, targets)
		stored = operations
		// The controllers read the history at their start: from a stream, or
		// in pages from an API server that does not stream.
		for mode, streams := range map[string]string{"streamed": "true", "in pages": "false"} {
			t.Run(fmt.Sprintf("%d operations %s", operations, mode), func(t *testing.T) {
				without, with := newFreezing(t, baseline, machines, streams), newFreezing(t, cluster, machines, streams)
				for range rounds {
					without.round(t)
					with.round(t)
				}
				peak, peakWithout := with.stop(t), without.stop(t)
				fmt.Printf("history: %d operations of %d targets, %s: at most %d MiB (%d without), %d Machines frozen in %v (%v without)\n",
					operations, targets, mode, peak, peakWithout, machines, with.took, without.took)
				require.Less(t, peak, memoryLimit, "MiB")
				if proof { // one round each, while the controllers start, proves nothing
					require.LessOrEqual(t, slices.Min(with.took).Seconds(), 2*slices.Min(without.took).Seconds())
				}
			})
		}
	}
}

// storeHistory stores finished operations, numbered from one up to another.
// Each has a target of half a kilobyte for each of its Machines. The first is
// written through the API server and the rest are copies that are put into
// etcd, since the API server takes half a second for each.
func storeHistory(t *testing.T, cluster *local.Cluster, from, to, targets int) {
	t.Helper()
	c, start := newClient(t, cluster), time.Now()
	first := fmt.Sprintf("history-%05d", from)
	stored := store(t, c, "machineoperations", object(t, "machineoperations", first, string(encode(t, map[string]any{
		"spec":   map[string]any{"operationKind": "HostReplace", "machineSelector": map[string]any{"matchLabels": map[string]any{"rack": "history"}}},
		"status": finishedStatus(targets),
	}))))
	const folder = "/registry/unbounded-cloud.io/machineoperations/"
	var found struct{ Kvs []struct{ Value []byte } }
	callEtcd(t, cluster, "range", map[string]any{"key": []byte(folder + first)}, &found)
	require.Len(t, found.Kvs, 1)
	value := string(found.Kvs[0].Value)
	concurrently(t, to-from-1, func(i int) error {
		name := fmt.Sprintf("history-%05d", from+i+1)
		replace := strings.NewReplacer(strconv.Quote(first), strconv.Quote(name), string(stored.GetUID()), string(uuid.NewUUID()))
		callEtcd(t, cluster, "put", map[string]any{"key": []byte(folder + name), "value": []byte(replace.Replace(value))}, nil)
		return nil
	})
	fmt.Printf("history: %d operations of %d kB stored in %s\n", to-from, len(value)/1000, time.Since(start).Round(time.Second))
}

// callEtcd calls etcd, whose JSON has base64 for bytes as that of Go has.
func callEtcd(t *testing.T, cluster *local.Cluster, method string, request, answer any) {
	response, err := http.Post(cluster.EtcdURL()+"/v3/kv/"+method, "application/json", bytes.NewReader(encode(t, request)))
	if !assert.NoError(t, err) {
		return
	}
	defer response.Body.Close()
	assert.Equal(t, http.StatusOK, response.StatusCode)
	if answer != nil {
		assert.NoError(t, json.NewDecoder(response.Body).Decode(answer))
	}
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

func newFreezing(t *testing.T, cluster *local.Cluster, machines int, streams string) *freezing {
	t.Helper()
	cmd := cluster.Controllers(cluster.Kubeconfig, "hostreplace", "--simulated-provider=dir="+t.TempDir())
	cmd.Env = append(os.Environ(), "KUBE_FEATURE_WatchListClient="+streams)
	return &freezing{client: newClient(t, cluster), machines: machines, running: startProcess(t, cmd)}
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

// stop ends the controllers and returns the most memory that they ever had, in
// MiB. The kernel's account of an ended process would include what the test had
// when it started it.
func (f *freezing) stop(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.running.cmd.Process.Pid))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(status), "VmHWM:")
	require.True(t, found)
	var kilobytes int
	_, err = fmt.Sscan(after, &kilobytes)
	require.NoError(t, err)
	require.NoError(t, f.running.cmd.Process.Signal(syscall.SIGTERM))
	<-f.running.done
	return kilobytes / 1024
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
