package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/internal/operation/simulated"
)

// Many operations over many Machines run to their end in bounded memory. See
// make scale.
func TestScale(t *testing.T) {
	needsLocal(t)
	if os.Getenv("HOSTFORMAT_SCALE") == "" {
		t.Skip("make scale runs this: it takes some minutes")
	}
	const operations, machinesEach = 2_000, 5
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	start := time.Now()
	concurrently(t, operations*machinesEach, func(i int) error {
		u := object(t, "machines", fmt.Sprintf("scale-%05d", i), "spec: {"+host(fmt.Sprintf("image: 'img-%d', provisioningFormat: CloudInit", i))+"}")
		u.SetLabels(map[string]string{"rack": fmt.Sprint(i / machinesEach)})
		_, err := c.of("machines").Create(t.Context(), u, metav1.CreateOptions{})
		return err
	})
	fmt.Printf("scale: %d Machines created in %s\n", operations*machinesEach, time.Since(start).Round(time.Second))
	concurrently(t, operations, func(i int) error {
		_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", fmt.Sprintf("scale-%05d", i),
			fmt.Sprintf("spec: {operationKind: HostReplace, parameters: {maxInFlight: '%d'}, machineSelector: {matchLabels: {rack: '%d'}}}", machinesEach, i)), metav1.CreateOptions{})
		return err
	})

	dir := t.TempDir()
	start = time.Now()
	running := startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=dir="+dir)
	require.Eventually(t, func() bool {
		done := 0
		next := ""
		for {
			list, err := c.of("machineoperations").List(context.Background(), metav1.ListOptions{Limit: 500, Continue: next})
			if err != nil {
				return false
			}
			for i := range list.Items {
				if phase(&list.Items[i]) == "Complete" {
					done++
				}
			}
			if next = list.GetContinue(); next == "" {
				break
			}
		}
		fmt.Printf("scale: %d of %d operations complete after %s\n", done, operations, time.Since(start).Round(time.Second))
		return done == operations
	}, 20*time.Minute, 5*time.Second)
	took := time.Since(start)
	require.NoError(t, running.cmd.Process.Signal(syscall.SIGTERM))
	<-running.done
	peak := running.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss / 1024
	fmt.Printf("scale: %d operations on %d Machines took %s and at most %d MiB\n", operations, operations*machinesEach, took.Round(time.Second), peak)
	require.Less(t, peak, int64(512), "MiB")

	records, err := filepath.Glob(filepath.Join(dir, strings.Repeat("?", len(simulated.ID("")))))
	require.NoError(t, err)
	require.Len(t, records, operations*machinesEach)
	for _, path := range records {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var record simulated.Record
		require.NoError(t, json.Unmarshal(text, &record))
		require.Equal(t, 1, record.DestructiveCalls)
	}
}
