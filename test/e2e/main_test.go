// Package e2e holds the webhook to its rules on a real kube-apiserver, through
// kubectl and through client-go.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/test/local"
)

// Two clusters serve all tests: one with our CRDs, and one whose CRDs belong
// to somebody else, with fields that our types lack and without our enums.
var ours, foreign *local.Cluster

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logf.SetLogger(logr.Discard()) // reconcilers that run in this process say nothing
	os.Exit(runTests(ctx, m))
}

func runTests(ctx context.Context, m *testing.M) int {
	for cluster, crds := range map[**local.Cluster]string{&ours: "", &foreign: "testdata/foreign-crds"} {
		var err error
		if *cluster, err = local.Start(ctx, local.Options{CRDs: crds, Log: os.Stderr}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := (*cluster).Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
	return m.Run()
}

func clusters() map[string]*local.Cluster {
	return map[string]*local.Cluster{"our CRDs": ours, "foreign CRDs": foreign}
}

var kinds = map[string]string{
	"machines":                     "Machine",
	"machineconfigurations":        "MachineConfiguration",
	"machineconfigurationversions": "MachineConfigurationVersion",
	"machineoperations":            "MachineOperation",
}

// warnings collects what the API server warns of, for one client.
type warnings struct {
	sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.Lock()
	defer w.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warnings) take() []string {
	w.Lock()
	defer w.Unlock()
	texts := w.texts
	w.texts = nil
	return texts
}

// client is a dynamic client of a cluster, and the warnings it was given.
type client struct {
	dynamic.Interface
	*warnings
}

func newClient(t testing.TB, cluster *local.Cluster) client {
	t.Helper()
	config := rest.CopyConfig(cluster.Config)
	w := &warnings{}
	config.WarningHandler = w
	dynamicClient, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return client{dynamicClient, w}
}

func (c client) of(resource string) dynamic.ResourceInterface {
	resource, _, _ = strings.Cut(resource, "/")
	return c.Resource(v1alpha3.GroupVersion.WithResource(resource))
}

// object makes an object of a resource from the YAML of its spec, status and,
// where wanted, metadata.
func object(t testing.TB, resource, name, text string) *unstructured.Unstructured {
	t.Helper()
	resource, _, _ = strings.Cut(resource, "/")
	raw, err := yaml.YAMLToJSON([]byte(text))
	require.NoError(t, err, text)
	require.Contains(t, kinds, resource)
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{}`, v1alpha3.GroupVersion.String(), kinds[resource])
	if string(raw) != "{}" {
		head += ","
	}
	u := &unstructured.Unstructured{}
	require.NoError(t, u.UnmarshalJSON([]byte(head+string(raw[1:]))), text)
	u.SetName(name)
	return u
}

// store creates an object and then writes its status, as a controller would.
func store(t testing.TB, c client, resource string, u *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	_, err := c.of(resource).Create(t.Context(), u, metav1.CreateOptions{})
	require.NoError(t, err)
	writeStatus(t, c, resource, u)
	return get(t, c, resource, u.GetName())
}

func writeStatus(t testing.TB, c client, resource string, u *unstructured.Unstructured) {
	t.Helper()
	if status, ok := u.Object["status"]; ok {
		patch := encode(t, map[string]any{"status": status})
		_, err := c.of(resource).Patch(t.Context(), u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
}

func get(t testing.TB, c client, resource, name string) *unstructured.Unstructured {
	t.Helper()
	u, err := c.of(resource).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return u
}

var names atomic.Int64

// uniqueName keeps the objects of tests apart.
func uniqueName() string { return fmt.Sprintf("rack7-node-%d", names.Add(1)) }
