package operation

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

func machineNaming(name, provider, id string) *unstructured.Unstructured {
	m := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"host": map[string]any{
		"external": map[string]any{"provider": provider, "providerID": id},
	}}}}
	m.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("Machine"))
	m.SetName(name)
	return m
}

// The index reads an unstructured Machine like resolve reads a typed one, even if it
// cannot be converted to the type.
func TestHostOf(t *testing.T) {
	for name, test := range map[string]struct {
		machine, provider, id string
		odd                   bool
	}{
		"external":                         {"spec: {host: {external: {provider: P, providerID: i}}}", "P", "i", false},
		"external over legacy":             {"spec: {host: {external: {provider: P}}, provider: Q, providerID: j}", "P", "", false},
		"legacy":                           {"spec: {provider: Q, providerID: j}", "Q", "j", false},
		"legacy beside a host":             {"spec: {host: {image: i}, provider: Q, providerID: j}", "Q", "j", false},
		"legacy, external without one":     {"spec: {host: {external: {providerID: i}}, provider: Q, providerID: j}", "Q", "j", false},
		"an identifier without a provider": {"spec: {providerID: j}", "", "j", false},
		"nothing":                          {"spec: {}", "", "", false},
		"keys of another case":             {"spec: {Provider: Q, host: {External: {provider: P}}}", "", "", false},
		"no spec":                          {"metadata: {name: a}", "", "", false},
		"a provider of a number":           {"spec: {host: {external: {provider: 1, providerID: i}}, provider: Q, providerID: j}", "Q", "j", true},
		"an identifier of a number":        {"spec: {host: {external: {provider: P, providerID: 1}}}", "P", "", true},
		"external of text":                 {"spec: {host: {external: P}, provider: Q, providerID: [j]}", "Q", "", true},
		"a host of a list":                 {"spec: {host: [P]}", "", "", true},
		"a spec of text":                   {"spec: P", "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			raw := fromYAML(t, "kind: Machine\n"+test.machine)
			host := hostOf(raw)
			require.Equal(t, []string{test.provider, test.id}, []string{host.provider.Value(), host.id})
			machine := &v1alpha3.Machine{}
			err := kruntime.DefaultUnstructuredConverter.FromUnstructured(raw, machine)
			if test.odd {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			provider, id := resolve.Provider(machine)
			require.Equal(t, []string{provider, id}, []string{test.provider, test.id})
		})
	}
}

func requireHosts(t *testing.T, h *Hosts, want map[[2]string][]string) {
	t.Helper()
	machines := 0
	for host, names := range want {
		require.Equal(t, names, h.Naming(host[0], host[1]), host)
		machines += len(names)
		for _, name := range names {
			provider, known := h.ProviderOf(name)
			require.True(t, known, name)
			require.Equal(t, host[0], provider)
		}
	}
	require.Len(t, h.names, len(want), "stale hosts")
	require.Len(t, h.machines, machines, "stale Machines")
}

func TestHostsFollow(t *testing.T) {
	h := NewHosts(&pages{})
	store := (*hostStore)(h)
	require.Nil(t, h.Naming("P", "1"))
	require.False(t, h.HasSynced())

	require.NoError(t, store.Add(machineNaming("b", "P", "1")))
	require.NoError(t, store.Add(machineNaming("a", "P", "1")))
	require.NoError(t, store.Add(machineNaming("c", "Q", "1")))
	requireHosts(t, h, map[[2]string][]string{{"P", "1"}: {"a", "b"}, {"Q", "1"}: {"c"}})
	require.False(t, h.HasSynced(), "only a list holds all Machines")

	for range 2 { // the second time nothing changes
		require.NoError(t, store.Update(machineNaming("a", "Q", "1")))
		requireHosts(t, h, map[[2]string][]string{{"P", "1"}: {"b"}, {"Q", "1"}: {"a", "c"}})
	}
	require.NoError(t, store.Update(machineNaming("b", "P", "2")))
	requireHosts(t, h, map[[2]string][]string{{"P", "2"}: {"b"}, {"Q", "1"}: {"a", "c"}})

	require.NoError(t, store.Delete(machineNaming("c", "P", "as it was last seen")))
	require.NoError(t, store.Delete(machineNaming("nobody", "P", "2")))
	require.NoError(t, store.Delete(toolscache.DeletedFinalStateUnknown{Key: "b", Obj: machineNaming("b", "P", "stale")}))
	requireHosts(t, h, map[[2]string][]string{{"Q", "1"}: {"a"}})
	_, known := h.ProviderOf("b")
	require.False(t, known)

	names := h.Naming("Q", "1")
	names[0] = "changed by the caller"
	requireHosts(t, h, map[[2]string][]string{{"Q", "1"}: {"a"}})

	require.NoError(t, store.Replace([]any{machineNaming("d", "P", "1"), machineNaming("a", "P", "1")}, "7"))
	requireHosts(t, h, map[[2]string][]string{{"P", "1"}: {"a", "d"}})
	require.True(t, h.HasSynced())

	// A Machine without a host is in the index, and is not found by host.
	require.NoError(t, store.Update(machineNaming("d", "P", "")))
	require.Nil(t, h.Naming("P", ""))
	provider, known := h.ProviderOf("d")
	require.Equal(t, []any{"P", true}, []any{provider, known})
	require.NoError(t, store.Update(machineNaming("d", "P", "1")))
	requireHosts(t, h, map[[2]string][]string{{"P", "1"}: {"a", "d"}})

	require.Error(t, store.Replace([]any{"text"}, "8"))
	require.Error(t, store.Update("text"))
	require.Error(t, store.Delete("text"))
	requireHosts(t, h, map[[2]string][]string{{"P", "1"}: {"a", "d"}})
}

// Hosts lists in pages, follows the watch, and lists again when that breaks.
func TestHostsReflect(t *testing.T) {
	watches := make(chan *watch.FakeWatcher)
	from := &pages{watch: func() (watch.Interface, error) {
		w := watch.NewFake()
		watches <- w
		return w, nil
	}}
	for i := range objectsPerPage + 1 {
		from.objects = append(from.objects, machineNaming(fmt.Sprint("m-", i), "P", fmt.Sprint(i)))
	}
	h := NewHosts(from)
	require.False(t, h.NeedLeaderElection())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Start(ctx) }()

	w := <-watches
	require.True(t, h.HasSynced())
	require.Len(t, from.requests, 2)
	for i := range objectsPerPage + 1 {
		require.Equal(t, []string{fmt.Sprint("m-", i)}, h.Naming("P", fmt.Sprint(i)))
	}
	w.Add(machineNaming("another", "P", "0"))
	w.Modify(machineNaming("m-1", "Q", "1"))
	w.Delete(machineNaming("m-2", "P", "2"))
	eventually(t, func() bool { _, known := h.ProviderOf("m-2"); return !known })
	require.Equal(t, []string{"another", "m-0"}, h.Naming("P", "0"))
	require.Nil(t, h.Naming("P", "1"))
	require.Equal(t, []string{"m-1"}, h.Naming("Q", "1"))

	from.objects = from.objects[:1]
	w.Error(&metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired})
	<-watches
	requireHosts(t, h, map[[2]string][]string{{"P", "0"}: {"m-0"}})
	stop()
	require.NoError(t, <-done)
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 10*time.Second, time.Millisecond)
}

// Readers see one list or the next, never a mixture. Run with -race.
func TestHostsConcurrently(t *testing.T) {
	h := NewHosts(&pages{})
	store := (*hostStore)(h)
	lists := [][]any{{machineNaming("a", "P", "1"), machineNaming("b", "P", "1")}, {machineNaming("c", "P", "1"), machineNaming("d", "P", "1")}}
	require.NoError(t, store.Replace(lists[0], ""))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 2_000 {
				names := slices.DeleteFunc(h.Naming("P", "1"), func(name string) bool { return name == "e" })
				if !slices.Equal(names, []string{"a", "b"}) && !slices.Equal(names, []string{"c", "d"}) {
					t.Errorf("a mixture: %v", names)
					return
				}
				h.ProviderOf("a")
				h.HasSynced()
			}
		})
	}
	group.Go(func() {
		for i := range 2_000 {
			_ = store.Replace(lists[i%2], "")
			_ = store.Add(machineNaming("e", "P", "1"))
			_ = store.Update(machineNaming("e", "P", "2"))
			_ = store.Delete(machineNaming("e", "P", "2"))
		}
	})
	group.Wait()
}

// BenchmarkHosts reports the memory that the index takes for a Machine.
func BenchmarkHosts(b *testing.B) {
	const machines = 100_000
	allocated := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	for b.Loop() {
		before := allocated()
		h := NewHosts(&pages{})
		store := (*hostStore)(h)
		for i := range machines {
			_ = store.Add(machineNaming(fmt.Sprintf("rack-%04d-node-%02d", i/40, i%40), fmt.Sprint("Provider", i%3), fmt.Sprintf("chassis-%032d", i)))
		}
		b.ReportMetric(float64(allocated()-before)/machines, "B/Machine")
		runtime.KeepAlive(h)
	}
}
