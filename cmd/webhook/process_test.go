package main

import (
	"bytes"
	"context"
	"crypto/tls"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/internal/admission"
)

// What a test tells the process that it starts from its own binary.
const (
	argsVariable   = "HOSTFORMAT_TEST_WEBHOOK_ARGS"
	limitsVariable = "HOSTFORMAT_TEST_WEBHOOK_LIMITS"
)

func TestMain(m *testing.M) {
	words := os.Getenv(argsVariable)
	if words == "" {
		os.Exit(m.Run())
	}
	if err := json.Unmarshal([]byte(os.Getenv(limitsVariable)), &production); err != nil {
		panic(err)
	}
	collect := make(chan os.Signal, 1)
	signal.Notify(collect, syscall.SIGUSR1)
	go func() {
		for range collect {
			debug.FreeOSMemory()
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, strings.Split(words, "\n"), os.Stdout, os.Stderr))
}

// process is a webhook in a process of its own, so that what is measured is
// not what its clients take.
type process struct {
	*server
	clients *certs.CA // that sign certificates of clients, with --client-ca
	command *exec.Cmd
	begun   taken
}

func startProcess(t *testing.T, change func(*limits), args ...string) *process {
	t.Helper()
	p := &process{server: newServer(t)}
	bounds := production
	for _, limit := range []*time.Duration{&bounds.Header, &bounds.Request, &bounds.Answer, &bounds.Turn} {
		*limit *= slowdown
	}
	if change != nil {
		change(&bounds)
	}
	text, err := json.Marshal(bounds)
	require.NoError(t, err)
	p.command = exec.Command(os.Args[0])
	p.command.Env = append(os.Environ(), argsVariable+"="+strings.Join(p.args(args...), "\n"), limitsVariable+"="+string(text))
	for _, variable := range container(t).Env {
		p.command.Env = append(p.command.Env, variable.Name+"="+variable.Value)
	}
	p.command.Stdout, p.command.Stderr = io.Discard, &p.stderr
	require.NoError(t, p.command.Start())
	t.Cleanup(func() {
		require.NoError(t, p.command.Process.Signal(syscall.SIGTERM))
		require.NoError(t, p.command.Wait(), "it ends in order")
	})
	p.issue(t)
	p.waitReady(t)
	return p
}

// warm has the process answer some calls, and notes what it takes then.
func (p *process) warm(t *testing.T) {
	t.Helper()
	for range 3 {
		p.good(t)
	}
	p.comesTo(t, func(c *assert.CollectT, now taken) {
		assert.Equal(c, p.begun.goroutines, now.goroutines, "it settles")
		p.begun = now
	})
}

// good makes two calls, over connections of their own, and expects the right
// verdicts.
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

func machineReview(object string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","kind":{"group":"unbounded-cloud.io","version":"v1alpha3","kind":"Machine"},"object":` + object + `}}`
}

func (p *process) post(client *http.Client, path, body string) (int, string, error) {
	response, err := client.Post("https://"+p.address(p.port)+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, string(answer), err
}

func clientPair(t *testing.T, ca *certs.CA) tls.Certificate {
	t.Helper()
	certPEM, keyPEM, err := ca.IssueClient(time.Hour, "kube-apiserver")
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	return pair
}

// taken is what a process takes: its heap after a collection of garbage.
type taken struct{ goroutines, fds, heap float64 }

func (p *process) taken() (taken, error) {
	if err := p.command.Process.Signal(syscall.SIGUSR1); err != nil {
		return taken{}, err
	}
	text, err := p.scrape()
	if err != nil {
		return taken{}, err
	}
	return taken{
		goroutines: metric(text, "go_goroutines"),
		fds:        metric(text, "process_open_fds"),
		heap:       metric(text, "go_memstats_heap_alloc_bytes"),
	}, nil
}

// comesTo waits until a check agrees with what the process takes.
func (p *process) comesTo(t *testing.T, check func(*assert.CollectT, taken)) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		now, err := p.taken()
		assert.NoError(c, err)
		check(c, now)
	}, patience, interval)
}

func (p *process) scrape() (string, error) {
	client := p.client()
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + p.address(p.metrics) + "/metrics")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
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

// settles waits until the process takes about what it took before.
func (p *process) settles(t *testing.T) {
	t.Helper()
	const few, some = 8, 4 << 20
	p.comesTo(t, func(c *assert.CollectT, now taken) {
		assert.LessOrEqual(c, now.goroutines, p.begun.goroutines+few, "goroutines")
		assert.LessOrEqual(c, now.fds, p.begun.fds+few, "open files")
		assert.LessOrEqual(c, now.heap, 1.5*p.begun.heap+some, "heap")
	})
}

// peak is the most memory that the process ever took, in bytes.
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
