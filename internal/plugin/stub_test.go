package plugin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"
)

// stub is an API server that serves objects as they are given, even if a CRD or a
// webhook would refuse them. It records the requests.
type stub struct {
	objects map[string][]map[string]any // by resource
	mu      sync.Mutex
	asked   []string
	bare    bool   // without the namespace hostformat-system
	denied  string // resources with this prefix are forbidden
}

// newStub returns a stub with the objects of manifests.
func newStub(t *testing.T, manifests string) *stub {
	t.Helper()
	s := &stub{objects: map[string][]map[string]any{}}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var content map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(document), &content), document)
		resource, err := "leases", error(nil)
		if content["kind"] != "Lease" {
			resource, err = plural(fmt.Sprint(content["kind"]))
		}
		require.NoError(t, err, document)
		s.objects[resource] = append(s.objects[resource], content)
	}
	return s
}

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, "/apis/unbounded-cloud.io/v1alpha3/")
	if rest, core := strings.CutPrefix(r.URL.Path, "/api/v1/"); core {
		path, ok = rest, true
	}
	if rest, leases := strings.CutPrefix(r.URL.Path, "/apis/coordination.k8s.io/v1/namespaces/"); leases {
		namespace, rest, _ := strings.Cut(rest, "/")
		if path, ok = rest, true; namespace != "hostformat-system" {
			path = "elsewhere/" + namespace
		}
	}
	s.mu.Lock()
	s.asked = append(s.asked, path)
	s.mu.Unlock()
	resource, name, single := strings.Cut(path, "/")
	w.Header().Set("Content-Type", "application/json")
	if s.denied != "" && strings.HasPrefix(resource, s.denied) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"%s is forbidden","details":{"name":%q},"code":403}`, resource, name)
		return
	}
	if resource == "namespaces" && name == "hostformat-system" && !s.bare {
		fmt.Fprint(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"hostformat-system"}}`)
		return
	}
	if !ok || !single {
		selector, _ := labels.Parse(r.URL.Query().Get("labelSelector"))
		items := []any{}
		for _, content := range s.objects[resource] {
			u := unstructured.Unstructured{Object: content}
			if selector.Matches(labels.Set(u.GetLabels())) {
				items = append(items, content)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{}, "items": items})
		return
	}
	for _, content := range s.objects[resource] {
		if content["metadata"].(map[string]any)["name"] == name {
			_ = json.NewEncoder(w).Encode(content)
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"%s.unbounded-cloud.io \"%s\" not found","details":{"name":%q},"code":404}`, resource, name, name)
}

// of runs the plugin against the stub.
func (s *stub) of(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	streams, _, out, errs := genericiooptions.NewTestIOStreams()
	code = Run(t.Context(), append(args, "--server="+server.URL), streams)
	return out.String(), errs.String(), code
}

// requireNarrow requires that no line is wider than every terminal.
func requireNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), width, line)
	}
}
