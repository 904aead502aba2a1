package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"unbounded-cloud.io/hostformat/internal/operation"
)

// listing hides from a reflector that the API server can stream.
type listing struct{ toolscache.ListerWatcher }

func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// The index of hosts follows the Machines of an API server, whether that streams
// them or lists them in pages.
func TestHosts(t *testing.T) {
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	httpClient, err := rest.HTTPClientFor(ours.Config)
	require.NoError(t, err)
	lw, err := operation.MachineListerWatcher(ours.Config, httpClient)
	require.NoError(t, err)
	for name, lw := range map[string]toolscache.ListerWatcher{"streamed": lw, "in pages": listing{lw}} {
		t.Run(name, func(t *testing.T) {
			machine, chassis := uniqueName(), uniqueName()
			create := func(machine string) {
				spec := fmt.Sprintf("spec: {host: {external: {provider: Simulated, providerID: %s}}}", chassis)
				_, err := c.of("machines").Create(t.Context(), object(t, "machines", machine, spec), metav1.CreateOptions{})
				require.NoError(t, err)
			}
			create(machine + "-b")

			hosts := operation.NewHosts(lw)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- hosts.Start(ctx) }()
			require.Eventually(t, hosts.HasSynced, patience, interval)
			naming := func(want ...string) {
				t.Helper()
				require.Eventually(t, func() bool { return fmt.Sprint(hosts.Naming("Simulated", chassis)) == fmt.Sprint(want) }, patience, interval)
			}
			naming(machine + "-b")
			provider, known := hosts.ProviderOf(machine + "-b")
			require.True(t, known)
			require.Equal(t, "Simulated", provider)

			create(machine + "-a")
			naming(machine+"-a", machine+"-b")
			patch := []byte(`{"spec":{"host":{"external":{"providerID":"another"}}}}`)
			_, err := c.of("machines").Patch(t.Context(), machine+"-a", types.MergePatchType, patch, metav1.PatchOptions{})
			require.NoError(t, err)
			naming(machine + "-b")
			require.NoError(t, c.of("machines").Delete(t.Context(), machine+"-b", metav1.DeleteOptions{}))
			naming()
			stop()
			require.NoError(t, <-done)
		})
	}
}
