package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// simulated is an API server with many Machines, of which one in a thousand has an
// error. It generates each page on request. The first continue token expires once.
type simulated struct {
	machines int
	expired  bool
}

func (s *simulated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	total := 0
	if strings.HasSuffix(r.URL.Path, "/machines") {
		total = s.machines
	}
	if start > 0 && !s.expired {
		s.expired = true
		w.WriteHeader(http.StatusGone)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"metadata":{"continue":"%d"}}`, start)
		return
	}
	end := min(start+limit, total)
	next := ""
	if end < total {
		next = strconv.Itoa(end)
	}
	fmt.Fprintf(w, `{"kind":"List","apiVersion":"unbounded-cloud.io/v1alpha3","metadata":{"continue":%q,"remainingItemCount":%d},"items":[`, next, total-end)
	for i := start; i < end; i++ {
		if i > start {
			fmt.Fprint(w, ",")
		}
		format := "CloudInit"
		if i%1000 == 0 {
			format = "cloudinit"
		}
		fmt.Fprintf(w, `{"metadata":{"name":"rack-%d","annotations":{"note":%q}},"spec":{"host":{"image":"img-a","provisioningFormat":%q}},"status":{}}`, i, strings.Repeat("x", 1800), format)
	}
	fmt.Fprint(w, "]}")
}

// audit takes the same memory for a fleet of any size, and shows its progress.
func TestAuditOfALargeFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	machines := 20_000
	if os.Getenv("HOSTFORMAT_PROOF") != "" {
		machines = 100_000
	}
	program := filepath.Join(t.TempDir(), "kubectl-hostformat")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", program, "../../cmd/kubectl-hostformat").CombinedOutput()
	require.NoError(t, err, string(out))
	server := httptest.NewServer(&simulated{machines: machines})
	defer server.Close()

	// The peak of this process would otherwise count for its child.
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // on Linux
	cmd := exec.CommandContext(t.Context(), program, "audit", "--server", server.URL, "--progress", "-o", "json")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull) // never the cluster of the user
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.Error(t, cmd.Run())
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), stderr.String())
	var findings []finding
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &findings))
	require.Len(t, findings, 2*machines/1000, "refused by admission, and by a replacement")
	require.Contains(t, stderr.String(), fmt.Sprintf(" of %d read, ", machines))
	require.True(t, strings.HasSuffix(stderr.String(), "\r"), "the line is gone at the end")

	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss * 1024
	if runtime.GOOS == "darwin" {
		peak /= 1024
	}
	t.Logf("%d Machines of 2 kB: at most %d MiB of memory", machines, peak>>20)
	if os.Getenv("HOSTFORMAT_RACE") == "" { // the race detector needs memory
		require.Less(t, peak, int64(100<<20))
	}
}
