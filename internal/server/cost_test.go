package server

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/internal/admission"
)

// No review uses more memory than cost estimates. These are the most expensive
// reviews that we could think of.
func TestCostOfReviews(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	const size = 1 << 20
	distinct := func(format string) string {
		var body strings.Builder
		for i := 0; body.Len() < size; i++ {
			fmt.Fprintf(&body, format, i)
		}
		return statusReview + strings.TrimSuffix(body.String(), ",") + "]}}}}"
	}
	version := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE","kind":{"group":"unbounded-cloud.io","version":"v1alpha3","kind":"MachineConfigurationVersion"},"oldObject":{"status":{"deployed":true}},"object":{"spec":[`
	refused := machineReview(`{"spec":{"host":{"provisioningFormat":"x"}}}`)
	server := hooks{}
	admission.Register(server, admission.Deny)
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // so that little garbage is measured
	for name, review := range map[string]string{
		"empty targets":   fill(size, statusReview, "{}", "]}}}}"),
		"refused targets": fill(size, statusReview, `{"input":{"provisioningFormat":"x"}}`, "]}}}}"),
		"trimmed targets": fill(size, statusReview, `{"input":{"hostImage":" "}}`, "]}}}}"),
		"unlike targets":  distinct(`{"machineRef":"%d","input":{"hostImage":" "}},`),
		"a deployed spec": fill(size, version, `{"":0}`, "]}}}"),
		"one long value":  machineReview(`{"spec":{"host":{"image":"` + strings.Repeat(" ", size) + `"}}}`),
		"a long machine":  statusReview + `{"machineRef":"` + strings.Repeat("x", size) + `","input":{"hostImage":"\u200b","provisioningFormat":"x"}}]}}}}`,
		"escapes":         statusReview + `{"machineRef":"` + strings.Repeat("<", size) + `","input":{"hostImage":"\u200b","provisioningFormat":"x"}}]}}}}`,
		"a wrong type":    machineReview(`{"spec":["` + strings.Repeat("<", size) + `"]}`),
		"a wrong image":   machineReview(`{"spec":{"host":{"image":["` + strings.Repeat("<\xff", size/2) + `"]}}}`),
		"a long name":     strings.Replace(refused, `"uid":"u"`, `"uid":"u","name":"`+strings.Repeat("x", size)+`"`, 1),
		"escaped name":    strings.Replace(refused, `"uid":"u"`, `"uid":"u","name":"`+strings.Repeat("<", size)+`"`, 1),
		"no UTF-8":        strings.Replace(refused, `"uid":"u"`, `"uid":"u","name":"`+strings.Repeat("\xff", size)+`"`, 1),
		"a long prefix":   machineReview(`{"metadata":{"generateName":"` + strings.Repeat("<", size) + `"},"spec":{"host":{"provisioningFormat":"x"}}}`),
		"a long uid":      strings.Replace(refused, `"uid":"u"`, `"uid":"`+strings.Repeat("<", size)+`"`, 1),
		"a long kind":     strings.Replace(refused, `"kind":"Machine"`, `"kind":"`+strings.Repeat("<", size)+`"`, 1),
		"deep":            machineReview(`{"spec":` + strings.Repeat("[", 9_900) + strings.Repeat("]", 9_900) + `}`),
		"deep, in a host": machineReview(`{"spec":{"host":{"image":` + strings.Repeat(`{"]":`, 9_900) + "0" + strings.Repeat("}", 9_900) + `}}}`),
	} {
		for path, hook := range server {
			estimate := cost([][]byte{[]byte(review)})
			// Garbage that is not collected in time adds to the result, more so on a
			// busy machine. The lowest of several results counts.
			least := int64(math.MaxInt64)
			for tries := 0; tries < 10 && least >= estimate; tries++ {
				least = min(least, memoryOf(t, hook, path, review))
			}
			t.Logf("%s, %s: %.2f of the estimate", name, path, float64(least)/float64(estimate))
			if slowdown == 1 { // the race detector needs memory, too
				require.Less(t, least, estimate, "%s, %s", name, path)
			}
		}
	}
}

// memoryOf returns the most bytes that the hook uses while it answers the review,
// including garbage.
func memoryOf(t *testing.T, hook http.Handler, path, review string) int64 {
	runtime.GC()
	before, done := used(), make(chan struct{})
	go func() {
		defer close(done)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(review))
		request.Header.Set("Content-Type", "application/json")
		hook.ServeHTTP(httptest.NewRecorder(), request)
	}()
	most := before
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return int64(max(most, used()) - before)
		case <-tick.C:
			most = max(most, used())
		}
	}
}

// used returns the size of the heap and of all stacks.
func used() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}
