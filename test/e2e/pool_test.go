package e2e

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/test/local"
)

// Local tests run side by side. Each has a cluster to itself, because controllers
// act on every operation that their cluster stores, and some tests stop the webhook
// or change CRDs. A cluster starts when a test needs it, and then serves one test
// after the other.
var (
	// ourCRDs are clusters with the CRDs of this project. In a given cluster, it is
	// the only one of these.
	ourCRDs = newPool(2, "")
	// foreignCRDs are clusters with CRDs of another project: they have fields that
	// our types lack, and none of our enums.
	foreignCRDs = newPool(1, "testdata/foreign-crds")
	// ownCluster is held by the test that has started a cluster of its own, so that
	// there is one of these at a time.
	ownCluster = make(chan struct{}, 1)
	// atOnce bounds how many parts of the large tables run at the same time.
	atOnce = make(chan struct{}, 4)
	// interrupted is done when somebody interrupts the tests.
	interrupted context.Context
)

// pool is a number of clusters that are alike.
type pool struct {
	options local.Options
	mu      sync.Mutex
	free    []*local.Cluster // nil is one that has not been started
	started []*local.Cluster
	waiting []*ticket // in the order in which they are served
}

// ticket is a test that waits for a cluster.
type ticket struct {
	early bool
	ready chan *local.Cluster
}

func newPool(size int, crds string) *pool {
	return &pool{
		options: local.Options{CRDs: crds, EveryWrite: everyWrite, Log: os.Stderr},
		free:    make([]*local.Cluster, size),
	}
}

// take runs the test beside others, and returns a cluster that no other test uses
// until this one ends.
func (p *pool) take(t *testing.T) *local.Cluster {
	t.Helper()
	return p.takeAs(t, &ticket{})
}

// takeEarly is take for a test that takes long but little of the processors. It is
// served before others, so that they run beside it.
func (p *pool) takeEarly(t *testing.T) *local.Cluster {
	t.Helper()
	return p.takeAs(t, &ticket{early: true})
}

func (p *pool) takeAs(t *testing.T, k *ticket) *local.Cluster {
	t.Helper()
	if given {
		if p == foreignCRDs {
			needsLocal(t)
		}
		return p.started[0]
	}
	p.enqueue(k)
	t.Parallel() // returns once all tests are in the queue
	return p.wait(t, k)
}

func (p *pool) enqueue(k *ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k.ready = make(chan *local.Cluster, 1)
	at := slices.IndexFunc(p.waiting, func(other *ticket) bool { return !other.early })
	if at < 0 || !k.early {
		at = len(p.waiting)
	}
	p.waiting = slices.Insert(p.waiting, at, k)
}

// wait waits until it is the ticket's turn.
func (p *pool) wait(t *testing.T, k *ticket) *local.Cluster {
	t.Helper()
	p.serve()
	cluster := <-k.ready
	t.Cleanup(func() {
		p.mu.Lock()
		p.free = append(p.free, cluster)
		p.mu.Unlock()
		p.serve()
	})
	if cluster != nil {
		return cluster
	}
	cluster, err := local.Start(interrupted, p.options)
	require.NoError(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = append(p.started, cluster)
	return cluster
}

// serve gives free clusters to tests that wait, running ones first.
func (p *pool) serve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.free) > 0 && len(p.waiting) > 0 {
		at := max(0, slices.IndexFunc(p.free, func(c *local.Cluster) bool { return c != nil }))
		p.waiting[0].ready <- p.free[at]
		p.waiting, p.free = p.waiting[1:], slices.Delete(p.free, at, at+1)
	}
}

// has reports whether a cluster is one of these.
func (p *pool) has(cluster *local.Cluster) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.started, cluster)
}

func (p *pool) stop() (errs error) {
	for _, cluster := range p.started {
		errs = errors.Join(errs, cluster.Stop())
	}
	return errs
}

// takeMore is take for a test that runs beside others already. A test that holds a
// foreign cluster takes no other one: two such tests could wait for each other.
func (p *pool) takeMore(t *testing.T) *local.Cluster {
	t.Helper()
	k := &ticket{}
	p.enqueue(k)
	return p.wait(t, k)
}

// clusters takes a cluster of each kind, by what its CRDs are.
func clusters(t *testing.T) map[string]*local.Cluster {
	t.Helper()
	all := map[string]*local.Cluster{"our CRDs": ourCRDs.take(t)}
	if !given {
		all["foreign CRDs"] = foreignCRDs.takeMore(t)
	}
	return all
}

// takeOwn runs the test beside others, and starts a cluster with options that no
// other test needs.
func takeOwn(t *testing.T, options local.Options) *local.Cluster {
	t.Helper()
	t.Parallel()
	ownCluster <- struct{}{}
	t.Cleanup(func() { <-ownCluster })
	return start(t, options)
}

// start starts a cluster that is stopped when the test ends.
func start(t *testing.T, options local.Options) *local.Cluster {
	t.Helper()
	options.Log = &local.Log{}
	cluster, err := local.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Stop()) })
	return cluster
}
