package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// These benchmarks run side by side, for the ratios in docs/performance.md. Run them
// with make bench.

// idle is a webhook of controller-runtime that does nothing.
func idle() http.Handler {
	return &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })}
}

// typedTrim is a defaulter of controller-runtime, which decodes the whole object into
// a Go type and compares the encoded result with the original.
type typedTrim struct{}

func (typedTrim) Default(_ context.Context, m *v1alpha3.Machine) error {
	m.Spec.Host.Image = resolve.TrimImage(m.Spec.Host.Image)
	return nil
}

func typed() http.Handler {
	scheme := runtime.NewScheme()
	if err := v1alpha3.AddToScheme(scheme); err != nil {
		panic(err)
	}
	return admission.WithDefaulter(scheme, typedTrim{})
}

// machineOf returns a Machine of about the given number of bytes.
func machineOf(size int, host string) string {
	return fmt.Sprintf("{metadata: {name: rack7-node-a, annotations: {a: %s}}, spec: {host: %s}}", strings.Repeat("x", size), host)
}

// statusOf returns an operation with the given number of frozen targets.
func statusOf(targets int, phase string) string {
	var list []string
	for i := range targets {
		list = append(list, fmt.Sprintf("{machineRef: rack-%d, phase: %s, input: {hostImage: 'r.example.com/os@sha256:0123456789abcdef', provisioningFormat: CloudInit}}", i, phase))
	}
	return "{spec: {operationKind: HostReplace}, status: {targets: [" + strings.Join(list, ", ") + "]}}"
}

func bench(b *testing.B, handler http.Handler, path string, r *admissionv1.AdmissionRequest, check func(*testing.B, *admissionv1.AdmissionResponse)) {
	b.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: r})
	require.NoError(b, err)
	var recorder *httptest.ResponseRecorder
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		request := httptest.NewRequestWithContext(b.Context(), http.MethodPost, path, bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorder = httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
	}
	var review admissionv1.AdmissionReview
	require.NoError(b, json.Unmarshal(recorder.Body.Bytes(), &review))
	check(b, review.Response)
}

func isAllowed(b *testing.B, r *admissionv1.AdmissionResponse) { require.True(b, r.Allowed) }
func isDenied(b *testing.B, r *admissionv1.AdmissionResponse)  { require.False(b, r.Allowed) }
func isPatched(b *testing.B, r *admissionv1.AdmissionResponse) { require.NotEmpty(b, r.Patch) }

// BenchmarkCall compares a call with one to a webhook that does nothing. Both read
// the review, which costs most.
func BenchmarkCall(b *testing.B) {
	for _, test := range []struct {
		name, resource, was, now string
		check                    func(*testing.B, *admissionv1.AdmissionResponse)
	}{
		{"create", "machines", "", machineOf(1700, "{image: img-a, provisioningFormat: CloudInit}"), isAllowed},
		{"label", "machines", machineOf(1700, "{image: img-a, provisioningFormat: CloudInit}"), machineOf(1701, "{image: img-a, provisioningFormat: CloudInit}"), isAllowed},
		{"refused", "machines", machineOf(1700, "{image: img-a}"), machineOf(1700, "{image: img-a, provisioningFormat: weird}"), isDenied},
		{"status-of-100", "machineoperations/status", statusOf(100, "Pending"), statusOf(100, "InProgress"), isAllowed},
		{"status-of-3000", "machineoperations/status", statusOf(3000, "Pending"), statusOf(3000, "InProgress"), isAllowed},
	} {
		r := request(b, test.resource, test.was, test.now)
		b.Run("write="+test.name+"/handler=idle", func(b *testing.B) { bench(b, idle(), ValidatePath, r, isAllowed) })
		b.Run("write="+test.name+"/handler=hostformat", func(b *testing.B) { bench(b, newMux(), ValidatePath, r, test.check) })
	}
}

// BenchmarkTrim compares trimming by a patch of one path, trimming by the typed
// defaulter, and only reading the review.
func BenchmarkTrim(b *testing.B) {
	for _, size := range []int{1_700, 26_000} {
		r := request(b, "machines", "", machineOf(size, "{image: ' img-a '}"))
		b.Run(fmt.Sprintf("bytes=%d/handler=idle", size), func(b *testing.B) { bench(b, idle(), MutatePath, r, isAllowed) })
		b.Run(fmt.Sprintf("bytes=%d/handler=hostformat", size), func(b *testing.B) { bench(b, newMux(), MutatePath, r, isPatched) })
		b.Run(fmt.Sprintf("bytes=%d/handler=typed", size), func(b *testing.B) { bench(b, typed(), MutatePath, r, isPatched) })
	}
}

// BenchmarkJudge compares judging the status of an operation with only decoding its
// two objects.
func BenchmarkJudge(b *testing.B) {
	for _, targets := range []int{30, 300, 3000} {
		r := request(b, "machineoperations/status", statusOf(targets, "Pending"), statusOf(targets, "InProgress"))
		b.Run(fmt.Sprintf("targets=%d/step=decode", targets), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, raw := range [][]byte{r.OldObject.Raw, r.Object.Raw} {
					var whole map[string]any
					require.NoError(b, utiljson.Unmarshal(raw, &whole))
				}
			}
		})
		b.Run(fmt.Sprintf("targets=%d/step=judge", targets), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				review, err := guards[r.Kind][r.SubResource].read(admission.Request{AdmissionRequest: *r})
				require.NoError(b, err)
				rules, err := review.judge()
				require.NoError(b, err)
				require.Empty(b, rules.introduced)
			}
		})
	}
}

// BenchmarkConditions measures what the conditions cost the API server.
func BenchmarkConditions(b *testing.B) {
	for _, test := range []struct{ name, resource, was, now string }{
		{"create", "machines", "", machineOf(1700, "{image: img-a, provisioningFormat: CloudInit}")},
		{"label", "machines", machineOf(1700, "{image: img-a, provisioningFormat: CloudInit}"), machineOf(1701, "{image: img-a, provisioningFormat: CloudInit}")},
		{"status-of-30", "machineoperations/status", statusOf(30, "Pending"), statusOf(30, "InProgress")},
		{"status-of-300", "machineoperations/status", statusOf(300, "Pending"), statusOf(300, "InProgress")},
		{"status-of-3000", "machineoperations/status", statusOf(3000, "Pending"), statusOf(3000, "InProgress")},
	} {
		r := request(b, test.resource, test.was, test.now)
		for _, path := range []string{MutatePath, ValidatePath} {
			b.Run("write="+test.name+"/direction="+path[1:], func(b *testing.B) {
				ask := asked(b, path, r)
				var sent bool
				for b.Loop() {
					sent, _ = ask()
				}
				require.False(b, sent)
			})
		}
	}
}
