package e2e

import (
	"context"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/test/local"
)

// report runs the agent and returns its exit code and all that it prints.
func report(t *testing.T, cluster *local.Cluster, kubeconfig, config string, args ...string) (int, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.json")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	cmd := exec.CommandContext(t.Context(), cluster.Program("agent"), append([]string{"report", "--config", path, "--kubeconfig", kubeconfig}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func TestAgent(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	config := func(name, format string) string {
		if format == "" {
			return "{MachineName: " + name + "}"
		}
		return "{MachineName: " + name + ", ProvisioningFormat: " + format + ", Unknown: {Key: 1}}"
	}
	// Every write that the agent sends.
	watched := func(t *testing.T) (*proxy, func() []string) {
		p := newProxy(t, foreign)
		var mu sync.Mutex
		var writes []string
		p.judge = func(r *http.Request) fault {
			mu.Lock()
			defer mu.Unlock()
			writes = append(writes, r.Method+" "+r.URL.Path)
			return pass
		}
		return p, func() []string { mu.Lock(); defer mu.Unlock(); return writes }
	}

	t.Run("a Machine that is there keeps every byte but one field", func(t *testing.T) {
		name := uniqueName()
		store(t, c, "machines", object(t, "machines", name, "spec:"+fill(machineOfOthers, "img-a")+"status: {phase: Ready, serial: 9007199254740993, conditions: [{type: Theirs}]}"))
		was := get(t, c, "machines", name)
		p, writes := watched(t)
		code, out := report(t, foreign, p.kubeconfig, config(name, "ignition"))
		require.Zero(t, code, out)
		require.Contains(t, out, "reported Ignition for Machine "+name)
		require.Equal(t, []string{"PATCH /apis/unbounded-cloud.io/v1alpha3/machines/" + name + "/status"}, writes())
		now := get(t, c, "machines", name)
		require.Equal(t, was.Object["spec"], now.Object["spec"])
		require.Equal(t, was.GetGeneration(), now.GetGeneration())
		status := now.Object["status"].(map[string]any)
		require.Equal(t, "Ignition", status["observedProvisioningFormat"])
		delete(status, "observedProvisioningFormat")
		require.Equal(t, was.Object["status"], status)

		code, out = report(t, foreign, p.kubeconfig, config(name, "ignition"))
		require.Zero(t, code, out)
		require.Contains(t, out, "has Ignition already")
		require.Len(t, writes(), 1, "the hourly report costs no write")
	})
	t.Run("a Machine that is missing is created without a host", func(t *testing.T) {
		name := uniqueName()
		code, out := report(t, foreign, foreign.Kubeconfig, config(name, "cloud-init"))
		require.Zero(t, code, out)
		machine := get(t, c, "machines", name)
		require.NotContains(t, machine.Object, "spec")
		require.Equal(t, map[string]any{"observedProvisioningFormat": "CloudInit"}, machine.Object["status"])
	})
	t.Run("an omitted format touches no observation", func(t *testing.T) {
		name := uniqueName()
		store(t, c, "machines", object(t, "machines", name, "{spec: {}, "+ignition+"}"))
		p, writes := watched(t)
		for _, text := range []string{config(name, ""), "{MachineName: " + name + ", ProvisioningFormat: ''}"} {
			code, out := report(t, foreign, p.kubeconfig, text)
			require.Zero(t, code, out)
			require.Contains(t, out, "nothing is reported")
		}
		require.Empty(t, writes())
		require.Equal(t, map[string]any{"observedProvisioningFormat": "Ignition"}, get(t, c, "machines", name).Object["status"])

		created := uniqueName()
		code, out := report(t, foreign, p.kubeconfig, config(created, ""))
		require.Zero(t, code, out)
		require.NotContains(t, get(t, c, "machines", created).Object, "status")
	})
	t.Run("a wrong value writes nothing", func(t *testing.T) {
		name := uniqueName()
		p, writes := watched(t)
		code, out := report(t, foreign, p.kubeconfig, config(name, "Ignition"))
		require.Equal(t, 2, code)
		require.Contains(t, out, "use cloud-init or ignition")
		require.Empty(t, writes())
	})
	t.Run("a dry run writes nothing", func(t *testing.T) {
		name := uniqueName()
		p, writes := watched(t)
		code, out := report(t, foreign, p.kubeconfig, config(name, "ignition"), "--dry-run")
		require.Zero(t, code)
		require.Contains(t, out, "would create Machine "+name)
		require.Contains(t, out, "would report Ignition for Machine "+name)
		require.Empty(t, writes())
	})
	t.Run("a conflict is tried again and loses nobody's fields", func(t *testing.T) {
		name := uniqueName()
		store(t, c, "machines", object(t, "machines", name, "spec: {}"))
		p := newProxy(t, foreign)
		tries := 0
		p.judge = func(*http.Request) fault {
			if tries++; tries > 2 {
				return pass
			}
			_, err := c.of("machines").Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":{"phase":"Ready","serial":7,"conditions":[{"type":"Theirs"}]}}`), metav1.PatchOptions{}, "status")
			require.NoError(t, err)
			return []fault{conflict, serverError}[tries-1]
		}
		code, out := report(t, foreign, p.kubeconfig, config(name, "ignition"))
		require.Zero(t, code, out)
		require.Contains(t, out, "trying again")
		require.Equal(t, map[string]any{"phase": "Ready", "serial": int64(7), "conditions": []any{map[string]any{"type": "Theirs"}}, "observedProvisioningFormat": "Ignition"},
			get(t, c, "machines", name).Object["status"])
	})
	t.Run("an outage ends at the deadline", func(t *testing.T) {
		p := newProxy(t, foreign)
		p.judge = func(*http.Request) fault { return serverError }
		code, out := report(t, foreign, p.kubeconfig, config(uniqueName(), "ignition"), "--timeout=5s")
		require.Equal(t, 1, code)
		require.Contains(t, out, "gave up")
	})
	t.Run("the permissions that ship are enough, and no more", func(t *testing.T) {
		out, err := foreign.Kubectl(t.Context(), nil, "apply", "-f", filepath.Join(foreign.Root, "manifests", "agent", "rbac.yaml"))
		require.NoError(t, err, out)
		kubeconfig, err := foreign.KubeconfigFor(t.TempDir(), "host-7", "hostformat:agents")
		require.NoError(t, err)
		name := uniqueName()
		code, out := report(t, foreign, kubeconfig, config(name, "ignition"))
		require.Zero(t, code, out)
		stranger, err := foreign.KubeconfigFor(t.TempDir(), "stranger")
		require.NoError(t, err)
		code, out = report(t, foreign, stranger, config(name, "ignition"))
		require.Equal(t, 3, code)
		require.Contains(t, out, "forbidden")
	})
	t.Run("over a CRD without the field", func(t *testing.T) {
		removeFromSchema(t, c, "machines", "status properties observedProvisioningFormat")
		name := uniqueName()
		code, out := report(t, foreign, foreign.Kubeconfig, config(name, "ignition"))
		require.Equal(t, 3, code, out)
		require.Contains(t, out, "upgrade the CRDs first")
	})
	t.Run("usage", func(t *testing.T) {
		for _, args := range [][]string{{}, {"report"}, {"report", "--config", "/no/such/file"}, {"report", "--nope"}} {
			cmd := exec.CommandContext(t.Context(), foreign.Program("agent"), args...)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Equal(t, 2, cmd.ProcessState.ExitCode())
			require.Equal(t, 1, strings.Count(string(out), "\n"), string(out))
		}
	})
}

// removeFromSchema has a CRD of the foreign cluster forget a field, for one
// test, and waits until that is in force.
func removeFromSchema(t *testing.T, c client, resource, path string) {
	t.Helper()
	crds := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	name := resource + ".unbounded-cloud.io"
	crd, err := crds.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	require.NoError(t, err)
	segments := append([]string{"schema", "openAPIV3Schema", "properties"}, strings.Fields(path)...)
	unstructured.RemoveNestedField(versions[0].(map[string]any), segments...)
	require.NoError(t, unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
	_, err = crds.Update(t.Context(), crd, metav1.UpdateOptions{})
	require.NoError(t, err)
	field := segments[len(segments)-1]
	probe := map[string]any{field: "x"}
	for i := len(segments) - 2; i > 1; i-- {
		switch segments[i] {
		case "properties":
		case "items":
		default:
			var value any = probe
			if segments[i+1] == "items" {
				value = []any{probe}
			}
			probe = map[string]any{segments[i]: value}
		}
	}
	u := object(t, resource, uniqueName(), "{}")
	maps.Copy(u.Object, probe)
	unknown := func(want bool) {
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			_, err := c.of(resource).Create(context.Background(), u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}})
			assert.Equal(collect, want, apierrors.IsBadRequest(err), "%v", err)
		}, patience, interval)
	}
	t.Cleanup(func() {
		restoreForeignCRDs(t, c)
		unknown(false)
	})
	unknown(true)
}

func restoreForeignCRDs(t *testing.T, c client) {
	t.Helper()
	out, err := c.cluster.Kubectl(context.Background(), nil, "apply", "--server-side", "--force-conflicts", "-f", "testdata/foreign-crds")
	require.NoError(t, err, out)
}
