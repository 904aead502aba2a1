package operation

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// Hosts is an index of which Machines name which host. It follows the Machines
// with a watch of its own, and holds some 200 bytes of each: a cache of whole
// Machines would hold kilobytes. Like a cache, it may lag behind the API server.
type Hosts struct {
	reflector *toolscache.Reflector
	synced    atomic.Bool

	mu sync.RWMutex
	// machines holds the host that each Machine names, by name of the Machine.
	machines map[string]hostKey
	// names holds the sorted names of the Machines that name each host. Hosts
	// without a providerID are left out.
	names map[hostKey][]string
}

// hostKey is the host that a Machine names. A fleet has few providers, so their
// names are stored once.
type hostKey struct {
	provider unique.Handle[string]
	id       string
}

// NewHosts returns an empty index. Start fills it from a ListerWatcher of
// unstructured Machines.
func NewHosts(lw toolscache.ListerWatcher) *Hosts {
	h := &Hosts{machines: map[string]hostKey{}, names: map[hostKey][]string{}}
	// Unstructured: one Machine that Go types refuse would stop a typed list.
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("Machine"))
	h.reflector = toolscache.NewReflectorWithOptions(paged(lw, objectsPerPage, toMachineHost), example, (*hostStore)(h),
		toolscache.ReflectorOptions{Name: "hosts"})
	return h
}

// MachineListerWatcher returns a ListerWatcher of unstructured Machines.
func MachineListerWatcher(config *rest.Config, httpClient *http.Client) (toolscache.ListerWatcher, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = nil // the dynamic client sets its own
	c, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	machines := c.Resource(v1alpha3.GroupVersion.WithResource("machines"))
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return machines.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return machines.Watch(ctx, options)
		},
	}, nil
}

// Start keeps the index up to date until the context ends.
func (h *Hosts) Start(ctx context.Context) error {
	h.reflector.RunWithContext(ctx)
	return nil
}

// NeedLeaderElection returns false: a standby replica also follows the Machines.
// When it takes over, operations do not wait for a list of the whole fleet. This
// costs one watch per replica.
func (h *Hosts) NeedLeaderElection() bool { return false }

// HasSynced reports whether the index has held all Machines once. Before that,
// neither Naming nor ProviderOf can be relied on.
func (h *Hosts) HasSynced() bool { return h.synced.Load() }

// Naming returns the names of the Machines that name the host, sorted. It
// returns nil for an empty providerID, which names no host.
func (h *Hosts) Naming(provider, providerID string) []string {
	if providerID == "" {
		return nil
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	return slices.Clone(h.names[hostKey{unique.Make(provider), providerID}])
}

// ProviderOf returns the provider that a Machine names. known is false if the
// Machine is not in the index.
func (h *Hosts) ProviderOf(machine string) (provider string, known bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	named, known := h.machines[machine]
	if !known {
		return "", false
	}
	return named.provider.Value(), true
}

// set stores the host that a Machine names in place of the one before.
func (h *Hosts) set(machine string, now hostKey) {
	if was, known := h.machines[machine]; known {
		if was == now {
			return
		}
		h.remove(machine)
	}
	h.machines[machine] = now
	if now.id == "" {
		return
	}
	names := h.names[now]
	if i, found := slices.BinarySearch(names, machine); !found {
		h.names[now] = slices.Insert(names, i, machine)
	}
}

func (h *Hosts) remove(machine string) {
	was, known := h.machines[machine]
	if !known {
		return
	}
	delete(h.machines, machine)
	names := h.names[was]
	if i, found := slices.BinarySearch(names, machine); found {
		names = slices.Delete(names, i, i+1)
	}
	if len(names) == 0 {
		delete(h.names, was)
	} else {
		h.names[was] = names
	}
}

// machineHost is a Machine and the host that it names. It replaces the Machine as
// soon as that is read, which keeps a list of all Machines small.
type machineHost struct {
	machine string
	hostKey
}

// GetObjectKind makes it a runtime.Object, which lists consist of.
func (m *machineHost) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject makes it a runtime.Object.
func (m *machineHost) DeepCopyObject() runtime.Object {
	c := *m
	return &c
}

// toMachineHost is a toolscache.TransformFunc from unstructured Machines to *machineHost.
func toMachineHost(object any) (any, error) {
	switch object := object.(type) {
	case *machineHost:
		return object, nil
	case *unstructured.Unstructured:
		return &machineHost{object.GetName(), hostOf(object.Object)}, nil
	default:
		return nil, fmt.Errorf("%T is not an unstructured Machine", object)
	}
}

// hostOf is resolve.Provider for a Machine that is not decoded. A value of the
// wrong type counts as empty.
func hostOf(machine map[string]any) hostKey {
	if provider := text(machine, "spec", "host", "external", "provider"); provider != "" {
		return hostKey{unique.Make(provider), text(machine, "spec", "host", "external", "providerID")}
	}
	return hostKey{unique.Make(text(machine, "spec", "provider")), text(machine, "spec", "providerID")}
}

// hostStore is how the reflector writes to Hosts.
type hostStore Hosts

var _ toolscache.TransformingStore = &hostStore{}

// Transformer has the reflector reduce streamed Machines as they arrive.
func (s *hostStore) Transformer() toolscache.TransformFunc { return toMachineHost }

// Add adds a Machine.
func (s *hostStore) Add(machine any) error { return s.Update(machine) }

// Update adds a Machine or takes over its changes.
func (s *hostStore) Update(machine any) error {
	object, err := toMachineHost(machine)
	if err != nil {
		return err
	}
	n := object.(*machineHost)
	s.mu.Lock()
	defer s.mu.Unlock()
	(*Hosts)(s).set(n.machine, n.hostKey)
	return nil
}

// Delete removes a Machine, or what a DeletedFinalStateUnknown stands for.
func (s *hostStore) Delete(machine any) error {
	name, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(machine)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	(*Hosts)(s).remove(name)
	return nil
}

// Replace swaps the whole index for one of these Machines.
func (s *hostStore) Replace(machines []any, _ string) error {
	fresh := &Hosts{machines: make(map[string]hostKey, len(machines)), names: make(map[hostKey][]string, len(machines))}
	for _, machine := range machines {
		object, err := toMachineHost(machine)
		if err != nil {
			return err
		}
		n := object.(*machineHost)
		fresh.set(n.machine, n.hostKey)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machines, s.names = fresh.machines, fresh.names
	s.synced.Store(true)
	return nil
}

// Resync does nothing, since the index notifies no one.
func (s *hostStore) Resync() error { return nil }
