package providertest_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/operation/providertest"
)

// Rack replaces the hosts of one rack, through the API of its controller.
type Rack struct{ API RackAPI }

// RackAPI is what the rack's controller offers. It keeps the key of each job, and
// the highest fence of each bay.
type RackAPI interface {
	// Install begins a job, or returns the one that has this key already. Where the
	// bay knows a higher fence, no job is begun and that fence is returned.
	Install(ctx context.Context, key, bay, image string, fence int64, userData []byte) (job string, known int64, err error)
	// Find returns the job that has this key; none is empty.
	Find(ctx context.Context, key string) (job string, err error)
	// State is "running", "done" or "broken".
	State(ctx context.Context, job string) (string, error)
}

// Replace implements operation.Provider.
func (r Rack) Replace(ctx context.Context, to operation.Replacement) (string, error) {
	if to.ProviderID == "" {
		return "", operation.Permanent(errors.New("the Machine has no spec.host.external.providerID, which is the bay of the host"))
	}
	job, known, err := r.API.Install(ctx, to.Key, to.ProviderID, to.Pair.Image, to.Fence, to.UserData)
	if err == nil && known > to.Fence {
		err = &operation.FenceError{Fence: to.Fence, Known: known}
	}
	return job, err
}

// Lookup implements operation.Provider.
func (r Rack) Lookup(ctx context.Context, key string) (string, bool, error) {
	job, err := r.API.Find(ctx, key)
	return job, job != "", err
}

// Poll implements operation.Provider.
func (r Rack) Poll(ctx context.Context, job string) (operation.Progress, error) {
	state, err := r.API.State(ctx, job)
	if err != nil {
		return operation.Progress{}, err // tried again
	}
	switch state {
	case "done":
		return operation.Progress{State: operation.Succeeded}, nil
	case "broken":
		return operation.Progress{State: operation.Failed, Message: "the rack could not install the image"}, nil
	default:
		return operation.Progress{State: operation.Running}, nil
	}
}

// TestRack holds the provider to the contract.
func TestRack(t *testing.T) {
	rack := newFakeRack()
	open := func(*testing.T) operation.Provider { return Rack{API: rack} }
	installed := func(_ *testing.T, machine string) int { return rack.installed("id-" + machine) }
	providertest.Run(t, open, installed, 10*time.Second)
}

// A host without an identifier is refused for good, with no job.
func TestRackWithoutBay(t *testing.T) {
	rack := newFakeRack()
	_, err := Rack{API: rack}.Replace(t.Context(), operation.Replacement{Key: "u-1/m-1"})
	require.ErrorContains(t, err, "spec.host.external.providerID")
	require.Equal(t, err, operation.Permanent(errors.Unwrap(err)))
	require.Empty(t, rack.jobs)
}

// docs/howto.md shows this provider and its test as they are.
func TestExampleIsShown(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../../../docs/howto.md")
	require.NoError(t, err)
	blocks := strings.Split(string(page), "```go\n")[1:]
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		code, _, closed := strings.Cut(block, "```")
		require.True(t, closed)
		require.Contains(t, string(source), code)
	}
}

// fakeRack is a rack's controller in memory.
type fakeRack struct {
	sync.Mutex
	jobs   map[string]string // by key
	bays   map[string]int    // how often each was installed
	fences map[string]int64  // the highest of each bay
}

func newFakeRack() *fakeRack {
	return &fakeRack{jobs: map[string]string{}, bays: map[string]int{}, fences: map[string]int64{}}
}

func (f *fakeRack) Install(_ context.Context, key, bay, _ string, fence int64, _ []byte) (string, int64, error) {
	f.Lock()
	defer f.Unlock()
	if known := f.fences[bay]; known > fence {
		return "", known, nil
	}
	f.fences[bay] = fence
	if f.jobs[key] == "" {
		f.jobs[key] = "job of " + key
		f.bays[bay]++
	}
	return f.jobs[key], fence, nil
}

func (f *fakeRack) Find(_ context.Context, key string) (string, error) {
	f.Lock()
	defer f.Unlock()
	return f.jobs[key], nil
}

func (f *fakeRack) State(context.Context, string) (string, error) { return "done", nil }

func (f *fakeRack) installed(bay string) int {
	f.Lock()
	defer f.Unlock()
	return f.bays[bay]
}
