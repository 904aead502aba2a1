package simulated

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"

	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/operation/providertest"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

func stores(t *testing.T) map[string]Store {
	return map[string]Store{
		"ConfigMap": ConfigMapStore{fake.NewClientset().CoreV1().ConfigMaps(Namespace)},
		"files":     &DirStore{Dir: t.TempDir()},
	}
}

func TestContract(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			open := func(*testing.T) operation.Provider {
				return &Provider{Store: store, Options: Options{Duration: 20 * time.Millisecond}}
			}
			keys := map[string][]string{"m-1": {"u-1/m-1"}, "m-2": {"u-2/m-2"}, "m-3": {"u-3/m-3", "u-4/m-3", "u-5/m-3"}}
			acts := func(t *testing.T, machine string) int {
				n := 0
				for _, key := range keys[machine] {
					record, err := store.Get(t.Context(), ID(key))
					require.NoError(t, err)
					if record != nil {
						n += record.DestructiveCalls
					}
				}
				return n
			}
			providertest.Run(t, open, acts, 5*time.Second)
		})
	}
}

// The faults that crash tests use.
func TestMisbehaviour(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			replace := func(o Options, key string) error {
				_, err := (&Provider{Store: store, Options: o}).Replace(t.Context(), operation.Replacement{Key: key})
				return err
			}
			calls := func(key string) [2]int {
				record, err := store.Get(t.Context(), ID(key))
				require.NoError(t, err)
				return [2]int{record.ReplaceCalls, record.DestructiveCalls}
			}
			require.ErrorContains(t, replace(Options{Fail: 1}, "a"), "simulated failure 1 of 1")
			require.Equal(t, [2]int{1, 0}, calls("a"))
			require.NoError(t, replace(Options{Fail: 1}, "a"))
			require.Equal(t, [2]int{2, 1}, calls("a"))

			require.ErrorContains(t, replace(Options{LoseAnswer: true}, "b"), "loss of the answer")
			require.Equal(t, [2]int{1, 1}, calls("b"))
			require.NoError(t, replace(Options{LoseAnswer: true}, "b"))
			require.Equal(t, [2]int{2, 1}, calls("b"))

			require.NoError(t, replace(Options{ForgetKeys: true}, "c"))
			require.NoError(t, replace(Options{ForgetKeys: true}, "c"))
			require.Equal(t, [2]int{2, 2}, calls("c"))
		})
	}
}

// A host keeps the highest fence that it was replaced with. Calls with a lower fence
// are refused before they act, and so is a second call while the first still runs.
func TestFence(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			replace := func(o Options, key string, fence int64) error {
				_, err := (&Provider{Store: store, Options: o}).Replace(t.Context(), operation.Replacement{Key: key, Machine: "m-1", ProviderID: "bay-1", Fence: fence})
				return err
			}
			acts := func(key string) int {
				record, err := store.Get(t.Context(), ID(key))
				require.NoError(t, err)
				return record.DestructiveCalls
			}
			require.NoError(t, replace(Options{}, "a", 5))
			for key, fence := range map[string]int64{"lower": 4, "the same, of another operation": 5} {
				refusal := &operation.FenceError{}
				require.ErrorAs(t, replace(Options{}, key, fence), &refusal)
				require.Equal(t, operation.FenceError{Fence: fence, Known: 5}, *refusal)
				require.Zero(t, acts(key), key)
			}
			require.NoError(t, replace(Options{}, "a", 5), "the same call again")
			require.Equal(t, 1, acts("a"))
			require.NoError(t, replace(Options{Duration: time.Hour}, "b", 6))
			require.ErrorContains(t, replace(Options{}, "c", 7), "is being replaced for another operation")
			require.Zero(t, acts("c"))
			require.ErrorContains(t, replace(Options{ForgetKeys: true}, "a", 5), "6, which the provider knows for this host")
			require.Equal(t, 1, acts("a"))
		})
	}
}

func TestBrokenImage(t *testing.T) {
	p := &Provider{Store: &DirStore{Dir: t.TempDir()}, Options: Options{BrokenImage: "img-b"}}
	for image, want := range map[string]operation.State{"img-a": operation.Succeeded, "img-b": operation.Failed} {
		id, err := p.Replace(t.Context(), operation.Replacement{Key: image, Machine: image, Pair: resolve.Pair{Image: image}, Fence: 1})
		require.NoError(t, err)
		progress, err := p.Poll(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, want, progress.State)
	}
}

func TestParseOptions(t *testing.T) {
	o, err := ParseOptions("delay=2s,duration=3s,fail=4,lose-answer,forget-keys,broken=img-b,dir=/x")
	require.NoError(t, err)
	require.Equal(t, Options{2 * time.Second, 3 * time.Second, 4, true, true, "img-b", "/x"}, o)
	o, err = ParseOptions("")
	require.NoError(t, err)
	require.Zero(t, o)
	_, err = ParseOptions("slow")
	require.ErrorContains(t, err, `unknown option "slow"`)
	_, err = ParseOptions("delay=x")
	require.ErrorContains(t, err, "delay:")
}

func TestUnreadableRecord(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/"+ID("a"), []byte("{"), 0o600))
	store := &DirStore{Dir: dir}
	require.ErrorContains(t, store.Update(t.Context(), ID("a"), "h", func(*Record, Record) error { return nil }), "cannot be read")
}
