package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

func newClient(config *rest.Config) (*rest.RESTClient, error) {
	config.GroupVersion, config.APIPath = &v1alpha3.GroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	return rest.RESTClientFor(config)
}

// machine is a Machine of about size bytes, for one guard.
func machine(name, guard string, size int, image string) []byte {
	return encoded("Machine", name, guard, size, "spec", map[string]any{"host": map[string]any{"image": image, "provisioningFormat": "CloudInit"}})
}

func encoded(kind, name, guard string, size int, field string, value any) []byte {
	raw, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha3.GroupVersion.String(), "kind": kind, field: value,
		"metadata": map[string]any{"name": name, "labels": map[string]string{"bench": guard}, "annotations": map[string]string{"a": strings.Repeat("x", size)}},
	})
	if err != nil {
		panic(err) // of such values none can be
	}
	return raw
}

// status is a status of frozen targets.
func status(targets int, phase string) []byte {
	list := make([]any, targets)
	for i := range list {
		list[i] = map[string]any{"machineRef": fmt.Sprintf("rack-%d", i), "phase": phase,
			"input": map[string]any{"hostImage": "registry.example.com/os@sha256:0123456789abcdef0123456789abcdef", "provisioningFormat": "CloudInit"}}
	}
	raw, err := json.Marshal(map[string]any{"status": map[string]any{"phase": phase, "targets": list}})
	if err != nil {
		panic(err)
	}
	return raw
}

// measurements collects what is measured, by series and position, and prints
// each sample as a line of a Go benchmark.
type measurements struct {
	*testbed
	options
	mu      sync.Mutex
	samples map[position][]float64
}

// position is where samples belong: in a plot, on the line of a guard, and at x
// of an axis.
type position struct {
	plot, guard, axis string
	x                 float64
}

func (m *measurements) note(plot, guard, axis string, x float64, unit string, value float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := position{plot, guard, axis, x}
	m.samples[p] = append(m.samples[p], value)
	at := axis
	if x > 0 {
		at += fmt.Sprintf("=%d", int(x))
	}
	fmt.Printf("Benchmark%s/%s/guard=%s 1 %.0f %s\n", plot, at, guard, value, unit)
}

func (m *measurements) timed(plot, guard, axis string, x float64, do func() error) error {
	start := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s, %s: %w", plot, guard, err)
	}
	m.note(plot, guard, axis, x, "ns/op", float64(time.Since(start).Nanoseconds()))
	return nil
}

// turns has every guard do something once, in random order.
func turns(do func(guard string) error) error {
	shuffled := slices.Clone(guards)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for _, guard := range shuffled {
		if err := do(guard); err != nil {
			return err
		}
	}
	return nil
}

func (m *measurements) create(ctx context.Context, body []byte) error {
	return m.client.Post().Resource("machines").Body(body).Do(ctx).Error()
}

func (m *measurements) patch(ctx context.Context, resource, name, subresource string, body []byte) error {
	request := m.client.Patch(types.MergePatchType).Resource(resource).Name(name).Body(body)
	if subresource != "" {
		request = request.SubResource(subresource)
	}
	return request.Do(ctx).Error()
}

const typical = 1700 // bytes in the annotation of a Machine of 1.9 kB

// requests measures single requests, one after the other.
func (m *measurements) requests(ctx context.Context) error {
	for round := -10; round < m.rounds; round++ { // the first warm up
		err := turns(func(guard string) error {
			name := fmt.Sprintf("request-%s-%d", guard, round+10)
			note := func(what string, do func() error) error {
				if round < 0 {
					return do()
				}
				return m.timed("Request", guard, "write="+what, 0, do)
			}
			return errors.Join(
				note("create", func() error { return m.create(ctx, machine(name, guard, typical, "img-a")) }),
				note("label", func() error { return m.patch(ctx, "machines", name, "", []byte(`{"metadata":{"labels":{"a":"b"}}}`)) }),
				note("image", func() error { return m.patch(ctx, "machines", name, "", []byte(`{"spec":{"host":{"image":"img-b"}}}`)) }),
				note("trimmed", func() error {
					return m.patch(ctx, "machines", name, "", []byte(`{"spec":{"host":{"image":" img-c "}}}`))
				}),
			)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// targets measures status writes of operations with so many frozen targets. No
// policy guards those.
func (m *measurements) targets(ctx context.Context) error {
	for _, n := range []int{1, 10, 100, 1000, 3000, 6000} {
		err := m.alternate(max(6, m.rounds/30), func(guard string) error {
			name := fmt.Sprintf("targets-%d-%s", n, guard)
			body := encoded("MachineOperation", name, guard, 0, "spec", map[string]any{"operationKind": "HostReboot", "machineRef": "a"})
			if err := m.client.Post().Resource("machineoperations").Body(body).Do(ctx).Error(); err != nil {
				return err
			}
			return m.patch(ctx, "machineoperations", name, "status", status(n, "Pending"))
		}, func(guard string, round int) error {
			body := status(n, []string{"InProgress", "Pending"}[round%2])
			return m.timed("Targets", guard, "targets", float64(n), func() error {
				return m.patch(ctx, "machineoperations", fmt.Sprintf("targets-%d-%s", n, guard), "status", body)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sizes measures image edits of Machines of so many bytes. Beyond the largest
// no annotation is allowed; the objects of targets go on to 1 MB.
func (m *measurements) sizes(ctx context.Context) error {
	for _, size := range []int{1_000, 10_000, 50_000, 100_000, 250_000} {
		err := m.alternate(max(6, m.rounds/10), func(guard string) error {
			return m.create(ctx, machine(fmt.Sprintf("size-%d-%s", size, guard), guard, size, "img"))
		}, func(guard string, round int) error {
			body := fmt.Appendf(nil, `{"spec":{"host":{"image":"img-%d"}}}`, round)
			return m.timed("Size", guard, "bytes", float64(size), func() error {
				return m.patch(ctx, "machines", fmt.Sprintf("size-%d-%s", size, guard), "", body)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// alternate prepares something for each guard, and then measures in rounds.
func (m *measurements) alternate(rounds int, prepare func(guard string) error, measure func(guard string, round int) error) error {
	if err := turns(prepare); err != nil {
		return err
	}
	for round := range rounds {
		if err := turns(func(guard string) error { return measure(guard, round) }); err != nil {
			return err
		}
	}
	return nil
}
