package server

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/internal/admission"
)

// memoryLimit returns the memory limit of the container.
func memoryLimit(t *testing.T) int64 {
	t.Helper()
	limit := container(t).Resources.Limits[corev1.ResourceMemory]
	require.Equal(t, resource.BinarySI, limit.Format)
	return limit.Value()
}

// container returns the container of the webhook, as it ships.
func container(t *testing.T) corev1.Container {
	t.Helper()
	text, err := os.ReadFile("../../manifests/base/deployment.yaml")
	require.NoError(t, err)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var d struct {
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		if yaml.Unmarshal([]byte(document), &d) == nil && len(d.Spec.Template.Spec.Containers) > 0 {
			return d.Spec.Template.Spec.Containers[0]
		}
	}
	t.Fatal("no container")
	return corev1.Container{}
}

// The limits leave a third of the container's memory for garbage and for what
// every process uses.
func TestBoundsFitTheContainer(t *testing.T) {
	l := defaults
	// Measured: the bytes that a connection uses, and the bytes for each byte of a
	// header, to which net/http adds some.
	const idle, header, more = 50 << 10, 20, 8 << 10
	connection := idle + header*(l.HeaderBytes+more)
	most := l.SmallMemory + l.LargeMemory + l.ReceivedBytes + int64(l.Connections*(connection+l.SmallBytes)+2*l.OtherConnections*connection)
	require.Less(t, most, memoryLimit(t)*2/3)
	require.Less(t, costOfByte*int64(l.BodyBytes), l.LargeMemory, "the largest review can be judged")
	require.Less(t, (costOfByte+costOfValue)*int64(l.SmallBytes), l.SmallMemory, "every small review can be judged")
}

// together sends a body many times at the same time, and counts the responses by
// code.
func (p *process) together(t *testing.T, times int, path, body string) map[int]int {
	t.Helper()
	codes := map[int]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range times {
		all.Go(func() {
			client := p.client()
			defer client.CloseIdleConnections()
			code, _, err := p.post(client, path, body)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Log(err)
			}
			codes[code]++
		})
	}
	all.Wait()
	t.Log(codes)
	return codes
}

// fill repeats a unit between head and tail, up to a size.
func fill(size int, head, unit, tail string) string {
	n := (size - len(head) - len(tail) - len(unit)) / (len(unit) + 1)
	return head + strings.Repeat(unit+",", n) + unit + tail
}

const statusReview = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE","subResource":"status","kind":{"group":"unbounded-cloud.io","version":"v1alpha3","kind":"MachineOperation"},"oldObject":{},"object":{"status":{"targets":[`

// Many large bodies arrive at the same time. Memory stays within the limit of the
// container, and the API server understands every response.
func TestManyLargeBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	const many = 16
	largest := defaults.BodyBytes
	room := int(defaults.LargeMemory) / (costOfByte*3/2 + costOfValue) * 3 / 2 // for {}, each of which counts as two values
	object := func(size int) string {
		const head, tail = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","kind":{"group":"unbounded-cloud.io","version":"v1alpha3","kind":"Machine"},"object":{"metadata":{"annotations":{"a":"`, `"}}}}}`
		return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
	}
	for name, test := range map[string]struct {
		path, body string
		only       []int
	}{
		"7 MiB less one":  {admission.ValidatePath, object(largest), []int{http.StatusOK, http.StatusTooManyRequests}},
		"7 MiB":           {admission.ValidatePath, object(largest + 1), []int{http.StatusRequestEntityTooLarge}},
		"more":            {admission.ValidatePath, object(largest + 200<<10), []int{http.StatusRequestEntityTooLarge}},
		"no JSON":         {admission.ValidatePath, fill(largest, "[", "{}", "]"), []int{http.StatusBadRequest, http.StatusTooManyRequests}},
		"too many values": {admission.ValidatePath, fill(largest, statusReview, "{}", "]}}}}"), []int{http.StatusRequestEntityTooLarge, http.StatusTooManyRequests}},
		"most values":     {admission.ValidatePath, fill(room-4096, statusReview, "{}", "]}}}}"), []int{http.StatusOK, http.StatusTooManyRequests}},
		"largest answers": {admission.MutatePath, fill(2<<20, statusReview, `{"input":{"hostImage":" "}}`, "]}}}}"), []int{http.StatusOK, http.StatusTooManyRequests}},
		"many small":      {admission.ValidatePath, fill(defaults.SmallBytes, statusReview, "{}", "]}}}}"), []int{http.StatusOK, http.StatusTooManyRequests}},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, func(c *Config) { c.Limits.RequestTimeout, c.Limits.ResponseTimeout = time.Hour, time.Hour })
			p.warm(t)
			codes := p.together(t, many, test.path, test.body)
			require.Positive(t, codes[test.only[0]], "%v", codes)
			answered := 0
			for _, code := range test.only {
				answered += codes[code]
			}
			require.Equal(t, many, answered, "%v", codes)
			p.good(t)
			p.settles(t)
			text, err := p.scrape()
			require.NoError(t, err)
			require.InDelta(t, codes[http.StatusTooManyRequests], metric(text, "hostformat_admission_throttled_calls_total"), 0)
			peak := p.peak(t)
			t.Log("peak", fmt.Sprint(peak>>20, " MiB"))
			if slowdown == 1 { // the race detector needs memory, too
				require.Less(t, peak, memoryLimit(t))
			}
		})
	}
}
