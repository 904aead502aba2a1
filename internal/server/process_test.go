package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	ctrl "sigs.k8s.io/controller-runtime"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/internal/admission"
)

// configVariable holds the Config of a server that a test runs in a process of its
// own.
const configVariable = "HOSTFORMAT_TEST_SERVER_CONFIG"

func TestMain(m *testing.M) {
	text := os.Getenv(configVariable)
	if text == "" {
		ctrl.SetLogger(logr.Discard())
		os.Exit(m.Run())
	}
	var config Config
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		panic(err)
	}
	config.Logger = testLogger(os.Stderr)
	ctrl.SetLogger(config.Logger)
	collect := make(chan os.Signal, 1)
	signal.Notify(collect, syscall.SIGUSR1)
	go func() {
		for range collect {
			debug.FreeOSMemory()
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Run(ctx, config); err != nil {
		panic(err)
	}
}

// process is a server in a process of its own, so that measurements do not include
// the clients.
type process struct {
	*testServer
	clients *certs.CA // signs the certificates of clients, if there is a client CA
	command *exec.Cmd
	before  usage
}

func startProcess(t *testing.T, change func(*Config)) *process {
	t.Helper()
	p := &process{testServer: newTestServer(t)}
	config := p.config()
	config.Limits = defaults
	for _, limit := range []*time.Duration{&config.Limits.HeaderTimeout, &config.Limits.RequestTimeout, &config.Limits.ResponseTimeout, &config.Limits.QueueTimeout} {
		*limit *= slowdown
	}
	if change != nil {
		change(&config)
	}
	text, err := json.Marshal(config) //nolint:staticcheck // SA1026: Controllers, which JSON does not support, is nil
	require.NoError(t, err)
	p.command = exec.Command(os.Args[0])
	p.command.Env = append(os.Environ(), configVariable+"="+string(text))
	for _, variable := range container(t).Env {
		p.command.Env = append(p.command.Env, variable.Name+"="+variable.Value)
	}
	p.command.Stdout, p.command.Stderr = io.Discard, &p.log
	p.issue(t)
	require.NoError(t, p.command.Start())
	t.Cleanup(func() {
		require.NoError(t, p.command.Process.Signal(syscall.SIGTERM))
		require.NoError(t, p.command.Wait(), "it shuts down")
	})
	p.waitReady(t)
	return p
}

// warm sends some reviews, and records what the process uses then.
func (p *process) warm(t *testing.T) {
	t.Helper()
	for range 3 {
		p.good(t)
	}
	p.eventually(t, func(c *assert.CollectT, now usage) {
		assert.Equal(c, p.before.goroutines, now.goroutines, "the number is stable")
		p.before = now
	})
}

// good sends two reviews over new connections, and expects the right responses.
func (p *process) good(t *testing.T) {
	t.Helper()
	client := p.client()
	if p.clients != nil {
		client = p.client(clientPair(t, p.clients))
	}
	defer client.CloseIdleConnections()
	client.Timeout = 10 * time.Second * slowdown // as long as the API server waits
	for format, allowed := range map[string]bool{"CloudInit": true, "cloud-init": false} {
		code, answer, err := p.post(client, admission.ValidatePath, machineReview(`{"spec":{"host":{"image":"a","provisioningFormat":"`+format+`"}}}`))
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code, answer)
		var review struct{ Response *struct{ Allowed bool } }
		require.NoError(t, json.Unmarshal([]byte(answer), &review))
		require.NotNil(t, review.Response)
		require.Equal(t, allowed, review.Response.Allowed, answer)
	}
}

// usage is what a process uses. The heap is measured after a garbage collection.
type usage struct{ goroutines, fds, heap float64 }

func (p *process) usage() (usage, error) {
	if err := p.command.Process.Signal(syscall.SIGUSR1); err != nil {
		return usage{}, err
	}
	text, err := p.scrape()
	if err != nil {
		return usage{}, err
	}
	return usage{
		goroutines: metric(text, "go_goroutines"),
		fds:        metric(text, "process_open_fds"),
		heap:       metric(text, "go_memstats_heap_alloc_bytes"),
	}, nil
}

// eventually waits until what the process uses passes a check.
func (p *process) eventually(t *testing.T, check func(*assert.CollectT, usage)) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		now, err := p.usage()
		assert.NoError(c, err)
		check(c, now)
	}, patience, interval)
}

// metric returns the value of a metric without labels.
func metric(text, name string) float64 {
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err == nil {
				return number
			}
		}
	}
	return -1
}

// settles waits until the process uses about as much as before.
func (p *process) settles(t *testing.T) {
	t.Helper()
	const few, some = 8, 4 << 20
	p.eventually(t, func(c *assert.CollectT, now usage) {
		assert.LessOrEqual(c, now.goroutines, p.before.goroutines+few, "goroutines")
		assert.LessOrEqual(c, now.fds, p.before.fds+few, "open files")
		assert.LessOrEqual(c, now.heap, 1.5*p.before.heap+some, "heap")
	})
}

// peak returns the most memory that the process ever used, in bytes.
func (p *process) peak(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.command.Process.Pid), "status"))
	require.NoError(t, err)
	for line := range bytes.Lines(status) {
		if value, found := bytes.CutPrefix(line, []byte("VmHWM:")); found {
			var kilobytes int64
			_, err := fmt.Sscan(string(value), &kilobytes)
			require.NoError(t, err)
			return kilobytes << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
