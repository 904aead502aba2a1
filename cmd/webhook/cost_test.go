package main

import (
	"fmt"
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

// No review takes more memory than cost says, however it is made up. These are
// the most expensive ones that we could think of.
func TestCostOfReviews(t *testing.T) {
	const size = 1 << 20
	distinct := func(format string) string {
		var body strings.Builder
		for i := 0; body.Len() < size; i++ {
			fmt.Fprintf(&body, format, i)
		}
		return statusReview + strings.TrimSuffix(body.String(), ",") + "]}}}}"
	}
	version := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE","kind":{"group":"unbounded-cloud.io","version":"v1alpha3","kind":"MachineConfigurationVersion"},"oldObject":{"status":{"deployed":true}},"object":{"spec":[`
	server := hooks{}
	admission.Register(server, admission.Deny)
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // so that little of what is measured is garbage
	for name, review := range map[string]string{
		"empty targets":   fill(size, statusReview, "{}", "]}}}}"),
		"refused targets": fill(size, statusReview, `{"input":{"provisioningFormat":"x"}}`, "]}}}}"),
		"trimmed targets": fill(size, statusReview, `{"input":{"hostImage":" "}}`, "]}}}}"),
		"unlike targets":  distinct(`{"machineRef":"%d","input":{"hostImage":" "}},`),
		"a deployed spec": fill(size, version, `{"":0}`, "]}}}"),
		"one long value":  machineReview(`{"spec":{"host":{"image":"` + strings.Repeat(" ", size) + `"}}}`),
	} {
		for path, hook := range server {
			runtime.GC()
			before, done := objects(), make(chan struct{})
			go func() {
				defer close(done)
				request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(review))
				request.Header.Set("Content-Type", "application/json")
				hook.ServeHTTP(httptest.NewRecorder(), request)
			}()
			most := before
			tick := time.NewTicker(time.Millisecond)
			for busy := true; busy; {
				select {
				case <-done:
					busy = false
				case <-tick.C:
				}
				most = max(most, objects())
			}
			tick.Stop()
			said := cost([][]byte{[]byte(review)})
			t.Logf("%s, %s: %.2f of what is said", name, path, float64(most-before)/float64(said))
			require.Less(t, int64(most-before), said, "%s, %s", name, path)
		}
	}
}

// objects is how many bytes the heap holds.
func objects() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
