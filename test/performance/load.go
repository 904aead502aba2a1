package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// clients measures creates by so many clients at once: how many a second, and
// what one of a hundred waits.
func (m *measurements) clients(ctx context.Context) error {
	const creates = 400
	for _, clients := range []int{1, 4, 16, 64} {
		for round := range max(2, m.rounds/30) {
			err := turns(func(guard string) error {
				start := time.Now()
				taken, err := m.fill(ctx, clients, creates, func(i int) []byte {
					return machine(fmt.Sprintf("clients-%d-%d-%s-%d", clients, round, guard, i), guard, typical, "img-a")
				})
				if err != nil {
					return err
				}
				m.note("Throughput", guard, "clients", float64(clients), "req/s", creates/time.Since(start).Seconds())
				slices.Sort(taken)
				m.note("Tail", guard, "clients", float64(clients), "p99-ns", float64(taken[len(taken)*99/100].Nanoseconds()))
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return m.noteMemory("until=load-is-over", 0)
}

// fill creates Machines by so many clients, and returns how long each took.
func (m *measurements) fill(ctx context.Context, clients, creates int, body func(int) []byte) ([]time.Duration, error) {
	taken := make([]time.Duration, creates)
	var next atomic.Int64
	var group errgroup.Group
	for range clients {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < creates; i = int(next.Add(1)) - 1 {
				start := time.Now()
				if err := m.create(ctx, body(i)); err != nil {
					next.Store(int64(creates)) // the others stop, too
					return err
				}
				taken[i] = time.Since(start)
			}
			return nil
		})
	}
	return taken, group.Wait()
}

// stored measures the memory of the webhook while ever more Machines are
// stored, each of which it judged.
func (m *measurements) stored(ctx context.Context) error {
	stored := 0
	for n := 100; n <= m.machines; n *= 10 {
		if _, err := m.fill(ctx, 16, n-stored, func(i int) []byte {
			return machine(fmt.Sprintf("stored-%d", stored+i), every, 0, "img-a")
		}); err != nil {
			return err
		}
		stored = n
		if err := m.noteMemory("machines", float64(n)); err != nil {
			return err
		}
		for round := range max(6, m.rounds/10) {
			err := turns(func(guard string) error {
				return m.timed("Stored", guard, "machines", float64(n), func() error {
					return m.create(ctx, machine(fmt.Sprintf("among-%d-%s-%d", n, guard, round), guard, typical, "img-a"))
				})
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *measurements) noteMemory(axis string, x float64) error {
	resident, peak, err := m.memory()
	if err != nil {
		return err
	}
	m.note("Resident", every, axis, x, "bytes", resident)
	m.note("Peak", every, axis, x, "bytes", peak)
	return nil
}

// starts measures how long the webhook takes from its start until it is ready.
func (m *measurements) starts(ctx context.Context) error {
	for range 6 {
		if err := m.cluster.StopWebhook(); err != nil {
			return err
		}
		if err := m.timed("Start", every, "until=ready", 0, func() error { return m.cluster.StartWebhook(ctx) }); err != nil {
			return err
		}
	}
	return nil
}
