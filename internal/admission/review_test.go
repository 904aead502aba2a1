package admission

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// mux implements Server with a map of paths.
type mux struct{ *http.ServeMux }

func (m mux) Register(path string, hook http.Handler) { m.Handle(path, hook) }

func newMux() http.Handler {
	m := mux{http.NewServeMux()}
	Register(m, Deny)
	return m
}

// kinds are the kinds of the resources.
var kinds = map[string]string{
	"machines":                     "Machine",
	"machineconfigurations":        "MachineConfiguration",
	"machineconfigurationversions": "MachineConfigurationVersion",
	"machineoperations":            "MachineOperation",
}

// request returns the review of a write to a resource, such as "machines" or
// "machineoperations/status". Without a stored object it is a create.
// Objects are YAML without apiVersion, kind and metadata, unless they have
// metadata of their own.
func request(t testing.TB, resource, was, now string) *admissionv1.AdmissionRequest {
	t.Helper()
	resource, sub, _ := strings.Cut(resource, "/")
	kind, ok := kinds[resource]
	require.True(t, ok, resource)
	r := &admissionv1.AdmissionRequest{
		UID:         "11111111-2222-3333-4444-555555555555",
		Kind:        metav1.GroupVersionKind(v1alpha3.GroupVersion.WithKind(kind)),
		Resource:    metav1.GroupVersionResource(v1alpha3.GroupVersion.WithResource(resource)),
		SubResource: sub,
		Name:        "rack7-node-a",
		Operation:   admissionv1.Create,
		UserInfo:    authenticationv1.UserInfo{Username: "system:serviceaccount:ops:tester"},
		Object:      object(t, kind, now),
	}
	if was != "" {
		r.Operation = admissionv1.Update
		r.OldObject = object(t, kind, was)
	}
	return r
}

func object(t testing.TB, kind, text string) runtime.RawExtension {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	require.NoError(t, err, text)
	if raw[0] != '{' || bytes.Contains(raw, []byte(`"metadata"`)) {
		return runtime.RawExtension{Raw: raw}
	}
	head := `{"apiVersion":"unbounded-cloud.io/v1alpha3","kind":"` + kind + `","metadata":{"name":"rack7-node-a"}`
	if string(raw) != "{}" {
		head += ","
	}
	return runtime.RawExtension{Raw: append([]byte(head), raw[1:]...)}
}

// post sends a review through the HTTP handler and returns the answer.
func post(t testing.TB, path string, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: r})
	require.NoError(t, err)
	response := postRaw(t, path, "application/json", body)
	require.Equal(t, r.UID, response.UID)
	requireSent(t, path, r, response)
	return response
}

func postRaw(t testing.TB, path, contentType string, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	httpRequest := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
	httpRequest.Header.Set("Content-Type", contentType)
	recorder := httptest.NewRecorder()
	newMux().ServeHTTP(recorder, httpRequest)
	require.Equal(t, http.StatusOK, recorder.Code)
	var review admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), &review))
	require.NotNil(t, review.Response)
	return review.Response
}

// cause is one denial: its type, the field, and words that the user reads.
type cause struct {
	reason metav1.CauseType
	field  string
	words  string
}

const (
	required     = metav1.CauseTypeFieldValueRequired
	invalid      = metav1.CauseTypeFieldValueInvalid
	notSupported = metav1.CauseTypeFieldValueNotSupported
	duplicate    = metav1.CauseTypeFieldValueDuplicate
	forbidden    = metav1.CauseTypeForbidden
	tooLong      = metav1.CauseTypeTooLong
	typeInvalid  = metav1.CauseTypeTypeInvalid
)

// row is a write and the expected answer of the validating handler. The write is
// allowed if no causes are expected.
type row struct {
	was, now string
	want     []cause
	warn     []string
}

func runRows(t *testing.T, resource string, rows map[string]row) {
	for name, test := range rows {
		t.Run(name, func(t *testing.T) {
			response := post(t, ValidatePath, request(t, resource, test.was, test.now))
			requireCauses(t, resource, response, test.want)
			require.Empty(t, response.Patch)
			require.Len(t, response.Warnings, len(test.warn), "%q", response.Warnings)
			for i, words := range test.warn {
				require.Contains(t, response.Warnings[i], words)
				require.Less(t, len(response.Warnings[i]), 256)
			}
		})
	}
}

func requireCauses(t *testing.T, resource string, response *admissionv1.AdmissionResponse, want []cause) {
	t.Helper()
	if len(want) == 0 {
		require.True(t, response.Allowed, "%+v", response.Result)
		return
	}
	require.False(t, response.Allowed)
	require.Equal(t, int32(http.StatusUnprocessableEntity), response.Result.Code)
	require.Equal(t, metav1.StatusReasonInvalid, response.Result.Reason)
	require.NotEmpty(t, response.AuditAnnotations["rules"])
	require.Len(t, response.Result.Details.Causes, len(want), "%+v", response.Result)
	for i, c := range want {
		got := response.Result.Details.Causes[i]
		require.Equal(t, c.field, got.Field)
		require.Equal(t, c.reason, got.Type, got.Message)
		require.Contains(t, got.Message, c.words)
		requireInSchema(t, resource, got.Field)
	}
}

// operations returns the patch of a mutating answer, which is never a denial.
func operations(t testing.TB, response *admissionv1.AdmissionResponse) []string {
	t.Helper()
	require.True(t, response.Allowed, "%+v", response.Result)
	if response.Patch == nil {
		return nil
	}
	var patch []struct{ Op, Path string }
	require.NoError(t, json.Unmarshal(response.Patch, &patch))
	require.NotEmpty(t, patch, "a clean object gets no patch at all")
	var lines []string
	for _, p := range patch {
		lines = append(lines, p.Op+" "+p.Path)
	}
	return lines
}

// mutated returns the object of a review after the mutating handler, and the
// operations and warnings of its answer.
func mutated(t testing.TB, r *admissionv1.AdmissionRequest) (after []byte, ops, warnings []string) {
	t.Helper()
	response := post(t, MutatePath, r)
	ops = operations(t, response)
	if ops == nil {
		return r.Object.Raw, nil, response.Warnings
	}
	patch, err := jsonpatch.DecodePatch(response.Patch)
	require.NoError(t, err)
	after, err = patch.Apply(r.Object.Raw)
	require.NoError(t, err)
	return after, ops, response.Warnings
}

var listKey = regexp.MustCompile(`\[[^]]*\]`)

var schemas = sync.OnceValue(func() map[string]apiextensionsv1.JSONSchemaProps {
	schemas := map[string]apiextensionsv1.JSONSchemaProps{}
	files, _ := filepath.Glob("../../manifests/crds/unbounded-cloud.io_*.yaml")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		var crd apiextensionsv1.CustomResourceDefinition
		if yaml.UnmarshalStrict(text, &crd) == nil {
			schemas[crd.Spec.Names.Plural] = *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		}
	}
	return schemas
})

// requireInSchema checks that the CRD has the path that a message names.
func requireInSchema(t *testing.T, resource, path string) {
	t.Helper()
	resource, _, _ = strings.Cut(resource, "/")
	schema, ok := schemas()[resource]
	require.True(t, ok, "no CRD for %s", resource)
	for segment := range strings.SplitSeq(listKey.ReplaceAllString(path, ".[]"), ".") {
		if segment == "[]" {
			require.NotNil(t, schema.Items, path)
			schema = *schema.Items.Schema
			continue
		}
		next, ok := schema.Properties[segment]
		require.True(t, ok, "%s: the CRD of %s has no %s", path, resource, segment)
		schema = next
	}
}
