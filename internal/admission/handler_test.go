package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const badMachine = "spec: {host: {image: ' a', provisioningFormat: weird}}"

func bothPaths(t *testing.T, r *admissionv1.AdmissionRequest, check func(*testing.T, *admissionv1.AdmissionResponse)) {
	t.Helper()
	for _, path := range []string{MutatePath, ValidatePath} {
		t.Run(path[1:], func(t *testing.T) { check(t, post(t, path, r)) })
	}
}

func requireUntouched(t *testing.T, response *admissionv1.AdmissionResponse) {
	t.Helper()
	require.True(t, response.Allowed)
	require.Empty(t, response.Patch)
	require.Empty(t, response.Warnings)
}

func TestOperationsThatAreNotJudged(t *testing.T) {
	for _, operation := range []admissionv1.Operation{admissionv1.Delete, admissionv1.Connect} {
		t.Run(string(operation), func(t *testing.T) {
			r := request(t, "machines", badMachine, badMachine)
			r.Operation, r.Object = operation, runtime.RawExtension{}
			bothPaths(t, r, requireUntouched)
		})
	}
}

func TestSubresourcesThatAreNotJudged(t *testing.T) {
	for _, resource := range []string{"machines/status", "machines/scale", "machineconfigurations/status", "machineconfigurationversions/status", "machineoperations/scale"} {
		t.Run(resource, func(t *testing.T) {
			bothPaths(t, request(t, resource, badMachine, badMachine), requireUntouched)
		})
	}
}

func TestUnknownKindIsNamed(t *testing.T) {
	for _, change := range []func(*admissionv1.AdmissionRequest){
		func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "Gadget" },
		func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "MachineList" },
		func(r *admissionv1.AdmissionRequest) { r.Kind.Group = "example.com" },
		func(r *admissionv1.AdmissionRequest) { r.Kind.Version = "v9" },
	} {
		r := request(t, "machines", "", "{}")
		change(r)
		bothPaths(t, r, func(t *testing.T, response *admissionv1.AdmissionResponse) {
			require.False(t, response.Allowed)
			require.Equal(t, int32(http.StatusBadRequest), response.Result.Code)
			require.Contains(t, response.Result.Message, "does not guard kind "+r.Kind.Kind+" of "+r.Kind.Group+"/"+r.Kind.Version)
		})
	}
}

func TestMissingObjects(t *testing.T) {
	for name, raw := range map[string][]byte{"absent": nil, "null": []byte("null"), "a list": []byte("[1]"), "a string": []byte(`"x"`)} {
		t.Run(name, func(t *testing.T) {
			r := request(t, "machines", "", "{}")
			r.Object.Raw = raw
			requireUntouched(t, post(t, MutatePath, r))
			response := post(t, ValidatePath, r)
			require.False(t, response.Allowed)
			require.Equal(t, int32(http.StatusBadRequest), response.Result.Code)
			require.Contains(t, response.Result.Message, "object")
		})
	}
	t.Run("an empty object", func(t *testing.T) {
		r := request(t, "machines", "", "{}")
		r.Object.Raw = []byte("{}")
		bothPaths(t, r, requireUntouched)
	})
	t.Run("an update without the stored object is judged as a create", func(t *testing.T) {
		for resource, text := range map[string]string{
			"machines":                     "spec: {host: {image: ' a', provisioningFormat: weird}}",
			"machineconfigurations":        "spec: {template: {host: {image: ' a', provisioningFormat: weird}}}",
			"machineconfigurationversions": "spec: {template: {host: {image: ' a', provisioningFormat: weird}}}",
		} {
			r := request(t, resource, "", text)
			r.Operation = admissionv1.Update
			require.Len(t, operations(t, post(t, MutatePath, r)), 1)
			require.False(t, post(t, ValidatePath, r).Allowed)
		}
	})
	t.Run("a stored object that cannot be read", func(t *testing.T) {
		r := request(t, "machines", "{}", badMachine)
		r.OldObject.Raw = []byte("[1]")
		requireUntouched(t, post(t, MutatePath, r))
		require.Contains(t, post(t, ValidatePath, r).Result.Message, "the stored object of the review cannot be read")
	})
}

// A create with generateName is judged like any other. The message names the prefix.
func TestGenerateName(t *testing.T) {
	for resource, bad := range map[string]string{
		"machines":                     "spec: {host: {provisioningFormat: weird}}",
		"machineconfigurations":        "spec: {template: {host: {provisioningFormat: weird}}}",
		"machineconfigurationversions": "spec: {template: {host: {provisioningFormat: weird}}}",
		"machineoperations":            "spec: {operationKind: HostReplace, machineSelector: {}}",
	} {
		r := request(t, resource, "", "{metadata: {generateName: rack7-}, "+bad+"}")
		r.Name = ""
		response := post(t, ValidatePath, r)
		require.False(t, response.Allowed)
		require.Equal(t, "rack7-*", response.Result.Details.Name)
		require.Contains(t, response.Result.Message, kinds[resource]+`.unbounded-cloud.io "rack7-*" is invalid`)

		r = request(t, resource, "", "{metadata: {generateName: rack7-}}")
		r.Name = ""
		bothPaths(t, r, requireUntouched)
	}
	r := request(t, "machines", "", badMachine)
	r.Name = ""
	require.Empty(t, post(t, ValidatePath, r).Result.Details.Name)
}

func TestBadRequests(t *testing.T) {
	review, err := json.Marshal(admissionv1.AdmissionReview{Request: request(t, "machines", "", "{}")})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		contentType string
		body        []byte
		code        int32
	}{
		"content type":   {"text/plain", review, http.StatusBadRequest},
		"empty":          {"application/json", nil, http.StatusBadRequest},
		"truncated":      {"application/json", review[:len(review)/2], http.StatusBadRequest},
		"nested deeply":  {"application/json", []byte(`{"request":{"object":` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + "}}"), http.StatusBadRequest},
		"beyond 7 MiB":   {"application/json", bytes.Repeat([]byte(" "), 8<<20), http.StatusRequestEntityTooLarge},
		"without review": {"application/json", []byte("{}"), http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			response := postRaw(t, ValidatePath, test.contentType, test.body)
			require.False(t, response.Allowed)
			require.Equal(t, test.code, response.Result.Code, response.Result.Message)
			require.True(t, post(t, ValidatePath, request(t, "machines", "", "{}")).Allowed, "the next request is fine")
		})
	}
}

func TestCancelledRequestIsNotJudged(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	response := handler{validate, Deny}.Handle(ctx, admission.Request{AdmissionRequest: *request(t, "machines", "", "{}")})
	require.False(t, response.Allowed)
	require.Equal(t, int32(http.StatusServiceUnavailable), response.Result.Code)
}

// A panic is answered. It does not drop the connection.
func TestPanicIsAnswered(t *testing.T) {
	hook := webhook(handler{direction: func(guard, admission.Request, Enforcement) verdict { panic("deliberate") }})
	body, err := json.Marshal(admissionv1.AdmissionReview{Request: request(t, "machines", "", "{}")})
	require.NoError(t, err)
	httpRequest := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
	httpRequest.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	hook.ServeHTTP(recorder, httpRequest)
	var review admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), &review))
	require.Equal(t, int32(http.StatusInternalServerError), review.Response.Result.Code)
}

// A denial and a warned request are logged in one line each, with the user and the
// rule. An allowed request is not logged.
func TestLog(t *testing.T) {
	logged.keep(true)
	defer logged.keep(false)
	dryRun := true
	r := request(t, "machines", "", badMachine)
	r.DryRun = &dryRun
	require.False(t, post(t, ValidatePath, r).Allowed)
	var line map[string]any
	require.NoError(t, json.Unmarshal(logged.take(), &line))
	require.Subset(t, line, map[string]any{"msg": "denied", "kind": "Machine", "name": "rack7-node-a", "operation": "CREATE", "dryRun": true,
		"user": "system:serviceaccount:ops:tester", "rules": "formatValue"})
	require.Contains(t, line["message"], "spec.host.provisioningFormat: Unsupported value")

	require.True(t, post(t, MutatePath, r).Allowed)
	require.True(t, post(t, ValidatePath, request(t, "machines", "", "{}")).Allowed)
	require.Empty(t, logged.take())

	require.True(t, handler{validate, Warn}.Handle(t.Context(), admission.Request{AdmissionRequest: *r}).Allowed)
	require.NoError(t, json.Unmarshal(logged.take(), &line))
	require.Subset(t, line, map[string]any{"msg": "warned", "rules": "formatValue"})
	require.Contains(t, line["message"], "spec.host.provisioningFormat: Unsupported value")
}

// logged holds the log lines of the package. controller-runtime accepts a logger only
// once, and early.
var logged lockedBuffer

func TestMain(m *testing.M) {
	logf.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(&logged, nil)))
	os.Exit(m.Run())
}

type lockedBuffer struct {
	sync.Mutex
	kept   bool
	buffer bytes.Buffer
}

func (b *lockedBuffer) keep(kept bool) {
	b.Lock()
	defer b.Unlock()
	b.kept = kept
	b.buffer.Reset()
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	if !b.kept {
		return len(p), nil
	}
	return b.buffer.Write(p)
}

func (b *lockedBuffer) take() []byte {
	b.Lock()
	defer b.Unlock()
	taken := bytes.Clone(b.buffer.Bytes())
	b.buffer.Reset()
	return taken
}
