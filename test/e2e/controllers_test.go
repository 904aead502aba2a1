package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"unbounded-cloud.io/hostformat/internal/operation/simulated"
	"unbounded-cloud.io/hostformat/test/local"
)

// fault is what becomes of a write that passes the proxy.
type fault int

const (
	pass            fault = iota
	drop                  // not forwarded, no answer
	forwardThenDrop       // forwarded, no answer
	conflict              // not forwarded, 409
	serverError           // not forwarded, 500
)

// proxy stands between controllers and the API server, and sees every request.
type proxy struct {
	kubeconfig string
	mu         sync.Mutex
	judge      func(*http.Request) fault // of a write
	afterDrop  func()                    // called instead of answering
	read       func(*http.Request)       // is told of each read
	lag        time.Duration             // events of a watch are late by a random time up to this
}

func newProxy(t *testing.T, cluster *local.Cluster) *proxy {
	t.Helper()
	transport, err := rest.TransportFor(cluster.Config)
	require.NoError(t, err)
	target, err := url.Parse(cluster.Config.Host)
	require.NoError(t, err)
	reverse := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	reverse.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	p := &proxy{}
	reverse.ModifyResponse = func(r *http.Response) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.lag > 0 && r.Request.URL.Query().Get("watch") == "true" {
			r.Body = newLateBody(r.Body, p.lag)
		}
		return nil
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := pass
		p.mu.Lock()
		judge, afterDrop := p.judge, p.afterDrop
		if r.Method != http.MethodGet && judge != nil {
			what = judge(r)
		}
		if r.Method == http.MethodGet && p.read != nil {
			p.read(r)
		}
		p.mu.Unlock()
		switch what {
		case pass:
			reverse.ServeHTTP(w, r)
		case conflict, serverError:
			status := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict}
			if what == serverError {
				status.Code, status.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(status.Code))
			_ = json.NewEncoder(w).Encode(status)
		default:
			if what == forwardThenDrop {
				reverse.ServeHTTP(httptest.NewRecorder(), r)
			}
			if afterDrop != nil {
				afterDrop()
			}
			panic(http.ErrAbortHandler) // closes the connection without an answer
		}
	}))
	t.Cleanup(server.Close)
	p.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"a","cluster":{"server":%q}}],"contexts":[{"name":"a","context":{"cluster":"a"}}],"current-context":"a"}`, server.URL)
	require.NoError(t, os.WriteFile(p.kubeconfig, []byte(content), 0o600))
	return p
}

// lateBody passes on what it reads, in order, each piece late by a random time.
type lateBody struct {
	io.ReadCloser
	pieces chan latePiece
	rest   []byte
	err    error
}

type latePiece struct {
	content []byte
	due     time.Time
	err     error
}

func newLateBody(body io.ReadCloser, lag time.Duration) *lateBody {
	b := &lateBody{ReadCloser: body, pieces: make(chan latePiece, 1<<16)}
	go func() {
		due := time.Now()
		for {
			content := make([]byte, 32<<10)
			n, err := body.Read(content)
			if late := time.Now().Add(time.Duration(rand.Int64N(int64(lag)))); late.After(due) {
				due = late
			}
			b.pieces <- latePiece{content[:n], due, err}
			if err != nil {
				return
			}
		}
	}()
	return b
}

func (b *lateBody) Read(into []byte) (int, error) {
	if len(b.rest) == 0 && b.err == nil {
		piece := <-b.pieces
		<-time.After(time.Until(piece.due))
		b.rest, b.err = piece.content, piece.err
	}
	n := copy(into, b.rest)
	b.rest = b.rest[n:]
	if n == 0 {
		return 0, b.err
	}
	return n, nil
}

// on sets what becomes of writes from now on.
func (p *proxy) on(judge func(*http.Request) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
}

// controllers is a running process.
type controllers struct {
	cmd  *exec.Cmd
	log  *local.Log
	done chan struct{}
}

func startControllers(t *testing.T, cluster *local.Cluster, kubeconfig, names string, args ...string) *controllers {
	t.Helper()
	return startProcess(t, cluster.Controllers(kubeconfig, names, args...))
}

func startProcess(t *testing.T, cmd *exec.Cmd) *controllers {
	t.Helper()
	c := &controllers{cmd: cmd, log: &local.Log{}, done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	require.NoError(t, c.cmd.Start())
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		c.kill()
		if t.Failed() {
			t.Log(c.log.String())
		}
	})
	return c
}

func (c *controllers) kill() {
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	<-c.done
}

const patience, interval = 2 * time.Minute, 50 * time.Millisecond

// host is the spec.host of a Machine that the simulated provider replaces, each
// time another one.
func host(fields string) string { return hostAt(fields, uniqueName()) }

// hostAt is the spec.host of a Machine for the host with a providerID.
func hostAt(fields, providerID string) string {
	if fields != "" {
		fields += ", "
	}
	return "host: {" + fields + "external: {provider: Simulated, providerID: " + providerID + "}}"
}

// newOperation creates a HostReplace of a Machine, and returns its name.
func newOperation(t *testing.T, c client, machine string) string {
	t.Helper()
	name := uniqueName()
	_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineRef: "+machine+"}"), metav1.CreateOptions{})
	require.NoError(t, err)
	return name
}

// finished waits until an operation has finished and returns it.
func finished(t *testing.T, c client, name string) *unstructured.Unstructured {
	t.Helper()
	return finishedWithin(t, c, name, patience)
}

func finishedWithin(t *testing.T, c client, name string, wait time.Duration) *unstructured.Unstructured {
	t.Helper()
	var op *unstructured.Unstructured
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		var err error
		op, err = c.of("machineoperations").Get(context.Background(), name, metav1.GetOptions{})
		if assert.NoError(collect, err) {
			assert.Contains(collect, []string{"Complete", "Failed"}, phase(op), "%v", op.Object["status"])
		}
	}, wait, interval)
	return op
}

func phase(op *unstructured.Unstructured) string {
	phase, _, _ := unstructured.NestedString(op.Object, "status", "phase")
	return phase
}

func message(op *unstructured.Unstructured) string {
	message, _, _ := unstructured.NestedString(op.Object, "status", "message")
	return message
}

// reason is why an operation was refused, or how it ended.
func reason(op *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(op.Object, "status", "conditions")
	for _, condition := range conditions {
		if condition := condition.(map[string]any); condition["type"] == "Complete" {
			return condition["reason"].(string)
		}
	}
	return ""
}

func targetOf(t *testing.T, op *unstructured.Unstructured, index int) map[string]any {
	t.Helper()
	targets, _, _ := unstructured.NestedSlice(op.Object, "status", "targets")
	require.Greater(t, len(targets), index, "%v", op.Object["status"])
	return targets[index].(map[string]any)
}

func inputOf(t *testing.T, op *unstructured.Unstructured) map[string]any {
	t.Helper()
	input, _ := targetOf(t, op, 0)["input"].(map[string]any)
	return input
}

// calls returns what the simulated provider knows of one target.
func calls(t asserting, cluster *local.Cluster, op *unstructured.Unstructured, machine string) simulated.Record {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	require.NoError(t, err)
	record, err := simulated.ConfigMapStore{ConfigMaps: clientset.CoreV1().ConfigMaps(simulated.Namespace)}.Get(context.Background(), simulated.ID(string(op.GetUID())+"/"+machine))
	require.NoError(t, err)
	if record == nil {
		return simulated.Record{}
	}
	return *record
}

// isStatusWrite reports whether a request writes the status of an operation. A dry
// run does not.
func isStatusWrite(r *http.Request) bool {
	return !r.URL.Query().Has("dryRun") && strings.Contains(r.URL.Path, "/machineoperations/") && strings.HasSuffix(r.URL.Path, "/status")
}
