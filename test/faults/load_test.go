package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

const (
	writersEach = 2                      // of each kind
	pace        = 200 * time.Millisecond // between two writes of a writer
	timeout     = 20 * time.Second       // of one write
)

// newClient tries nothing again: each answer is one answer.
func newClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // errors
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &v1alpha3.GroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	return rest.RESTClientFor(config)
}

// load is writers of all kinds, whose answers are judged and kept.
type load struct {
	client *rest.RESTClient
	label  string
	*ledger

	stop    chan struct{}
	writers sync.WaitGroup
	mu      sync.Mutex
	count   count
	wrong   []string
	last    map[kind]time.Time // when the last write began that was answered right
}

var loads, serial atomic.Int64

// startLoad starts writers, and waits until each kind is answered right.
func startLoad(t *testing.T, client *rest.RESTClient) *load {
	t.Helper()
	l := &load{client: client, label: fmt.Sprint(loads.Add(1)), ledger: newLedger(), stop: make(chan struct{}), last: map[kind]time.Time{}}
	begun := time.Now()
	for _, k := range kinds {
		for range writersEach {
			l.writers.Go(func() { l.write(k) })
		}
	}
	t.Cleanup(l.end)
	l.healed(t, begun)
	require.Empty(t, l.wrongAnswers())
	return l
}

// end lets each writer finish its write, and waits for it.
func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.writers.Wait()
}

// healed waits until each kind has been answered right in a write that began
// after a moment, and returns how long that took. A wrong answer ends the wait.
func (l *load) healed(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	var took time.Duration
	var open []kind
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		open = nil
		for _, k := range kinds {
			if !l.last[k].After(since) {
				open = append(open, k)
			}
		}
		took = time.Since(since)
		return len(open) == 0 || len(l.wrong) > 0
	}, patience, interval, "still not answered right: %v", &open)
	return took
}

func (l *load) wrongAnswers() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.wrong)
}

// write writes until the load is stopped.
func (l *load) write(k kind) {
	frozen := ""
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		begun := time.Now()
		var v verdict
		var err error
		switch {
		case k == trims:
			v, err = l.trim()
		case k == refuses:
			v, err = l.refuse(n)
		case k == keeps && frozen != "":
			v, err = l.keep(frozen, n)
		default:
			var name string
			if name, v, err = l.freeze(n); k == keeps && v == right {
				frozen = name
				continue // it is what the writer needs, not what it is for
			}
		}
		l.mu.Lock()
		l.count[v]++
		switch {
		case v == right && begun.After(l.last[k]):
			l.last[k] = begun
		case v == wrong:
			l.wrong = append(l.wrong, fmt.Sprintf("%s: %v", k, err))
		}
		l.mu.Unlock()
	}
}

// send makes one write and returns what is stored by it.
func (l *load) send(request *rest.Request, body any) (stored, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return stored{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var s stored
	result := request.MaxRetries(0).Body(raw).Do(ctx)
	if err := result.Error(); err != nil {
		return s, err
	}
	answer, err := result.Raw()
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(answer, &s)
}

func (l *load) object(kind, name, spec string, fields any) map[string]any {
	return map[string]any{
		"apiVersion": v1alpha3.GroupVersion.String(), "kind": kind, spec: fields,
		"metadata": map[string]any{"name": name, "labels": map[string]any{"load": l.label}},
	}
}

func (l *load) createMachine(name, image, format string) (stored, error) {
	return l.send(l.client.Post().Resource("machines"), l.object("Machine", name, "spec",
		map[string]any{"host": map[string]any{"image": image, "provisioningFormat": format}}))
}

func (l *load) writeTargets(operation string, targets ...any) (stored, error) {
	if targets == nil {
		targets = []any{}
	}
	return l.send(l.client.Patch(types.MergePatchType).Resource("machineoperations").Name(operation).SubResource("status"),
		map[string]any{"status": map[string]any{"targets": targets}})
}

func name(k kind) string { return fmt.Sprintf("%s-%d", k, serial.Add(1)) }

// good judges the answer to a write that is to be stored.
func good(got, want string, err error) (verdict, error) {
	switch {
	case err != nil:
		return refusal(err), err
	case got != want:
		return wrong, fmt.Errorf("stored %q, not %q", got, want)
	}
	return right, nil
}

// bad judges the answer to a write that is to be refused in words of ours.
func bad(err error, words string) (verdict, error) {
	switch {
	case err == nil:
		return wrong, errors.New("stored, but had to be refused: " + words)
	case apierrors.IsInvalid(err) && strings.Contains(err.Error(), words):
		return right, nil
	}
	return refusal(err), err
}

// trim creates a Machine whose image has whitespace round it.
func (l *load) trim() (verdict, error) {
	n := name(trims)
	s, err := l.createMachine(n, "  img-"+n+"\n", "CloudInit")
	want := "img-" + n + ", CloudInit"
	v, err := good(s.Spec.Host.Image+", "+s.Spec.Host.ProvisioningFormat, want, err)
	l.note(l.images, n, certain(v), want)
	return v, err
}

// refuse creates a Machine with an image or a format that is refused.
func (l *load) refuse(turn int) (verdict, error) {
	n := name(refuses)
	image, format, words := "img\u200b-"+n, "CloudInit", "invisible character U+200B"
	if turn%2 == 1 {
		image, format, words = "img-"+n, "cloud-init", `supported values: "CloudInit", "Ignition"`
	}
	_, err := l.createMachine(n, image, format)
	l.note(l.images, n, absent, "")
	return bad(err, words)
}

// freeze creates an operation and stores its pair, every other one with
// whitespace round the image. It returns the name of the operation.
func (l *load) freeze(turn int) (string, verdict, error) {
	n := name(freezes)
	_, err := l.send(l.client.Post().Resource("machineoperations"), l.object("MachineOperation", n, "spec",
		map[string]any{"operationKind": "HostReplace", "machineRef": n}))
	v, err := good("", "", err)
	l.note(l.ops, n, certain(v), "")
	if v != right {
		return n, v, err
	}
	image := "img-" + n
	want := fmt.Sprint([]target{{n, pair{image, "CloudInit"}}})
	if turn%2 == 1 {
		image = " " + image + "\t"
	}
	s, err := l.writeTargets(n, target{n, pair{image, "CloudInit"}})
	v, err = good(s.pairOf(), want, err)
	l.note(l.pairs, n, certain(v), want)
	return n, v, err
}

// keep tries to change a frozen pair, each time in another way.
func (l *load) keep(operation string, turn int) (verdict, error) {
	image := "img-" + operation
	ways := [][]any{
		{target{operation, pair{image + "-b", "CloudInit"}}},
		{target{operation, pair{image, "Ignition"}}},
		{target{operation, pair{image, ""}}},
		{target{operation, pair{"", "CloudInit"}}},
		{map[string]any{"machineRef": operation}},
		{},
	}
	_, err := l.writeTargets(operation, ways[turn%len(ways)]...)
	return bad(err, "frozen")
}
