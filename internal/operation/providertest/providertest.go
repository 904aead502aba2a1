// Package providertest holds any operation.Provider to its contract.
package providertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// Run tests a provider. open returns a client of one and the same provider
// each time, as another process would have it; acts tells how often the host
// of a Machine was really replaced. patience is how long a replacement may
// take.
func Run(t *testing.T, open func(*testing.T) operation.Provider, acts func(*testing.T, string) int, patience time.Duration) {
	replacement := func(key, machine string, fence int64) operation.Replacement {
		return operation.Replacement{Key: key, Machine: machine, ProviderID: "id-" + machine, Fence: fence,
			Pair: resolve.Pair{Image: "img-a", Format: v1alpha3.CloudInit}, UserData: []byte("#cloud-config\n{}\n")}
	}
	finish := func(t *testing.T, id string) {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			progress, err := open(t).Poll(t.Context(), id)
			assert.NoError(c, err)
			assert.Equal(c, operation.Succeeded, progress.State, progress.Message)
		}, patience, patience/100)
	}
	t.Run("an unknown key is not found", func(t *testing.T) {
		_, found, err := open(t).Lookup(t.Context(), "u-0/m-0")
		require.NoError(t, err)
		require.False(t, found)
	})
	t.Run("a replacement is accepted, found and finished", func(t *testing.T) {
		provider := open(t)
		id, err := provider.Replace(t.Context(), replacement("u-1/m-1", "m-1", 1))
		require.NoError(t, err)
		require.NotEmpty(t, id)
		again, found, err := open(t).Lookup(t.Context(), "u-1/m-1")
		require.NoError(t, err)
		require.True(t, found, "another process finds it")
		require.Equal(t, id, again)
		finish(t, id)
		require.Equal(t, 1, acts(t, "m-1"))
	})
	t.Run("a repeated key does not act again", func(t *testing.T) {
		first, err := open(t).Replace(t.Context(), replacement("u-2/m-2", "m-2", 1))
		require.NoError(t, err)
		second, err := open(t).Replace(t.Context(), replacement("u-2/m-2", "m-2", 1))
		require.NoError(t, err)
		require.Equal(t, first, second)
		require.Equal(t, 1, acts(t, "m-2"))
	})
	t.Run("another key with a higher fence acts again", func(t *testing.T) {
		first, err := open(t).Replace(t.Context(), replacement("u-3/m-3", "m-3", 3))
		require.NoError(t, err)
		finish(t, first)
		second, err := open(t).Replace(t.Context(), replacement("u-4/m-3", "m-3", 7))
		require.NoError(t, err)
		require.NotEqual(t, first, second)
		require.Equal(t, 2, acts(t, "m-3"))
		finish(t, second)
	})
	t.Run("a lower fence is refused", func(t *testing.T) {
		_, err := open(t).Replace(t.Context(), replacement("u-5/m-3", "m-3", 5))
		refusal := &operation.FenceError{}
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, int64(7), refusal.Known, "the error says which fence is known")
		_, found, err := open(t).Lookup(t.Context(), "u-5/m-3")
		require.NoError(t, err)
		require.False(t, found)
		require.Equal(t, 2, acts(t, "m-3"))
	})
}
