// Package e2e tests the rules of hostformat on a real kube-apiserver, through
// kubectl and through client-go: on local control planes or, with
// HOSTFORMAT_E2E_CLUSTER=1, in the cluster that KUBECONFIG names, where hostformat
// is installed. A test that needs the other kind of cluster skips itself and says
// so.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/test/local"
)

// People have KUBECONFIG set for other reasons, and these tests write: it takes a
// second variable to give them a cluster.
var given = os.Getenv("KUBECONFIG") != "" && os.Getenv(giveCluster) == "1"

// everyWrite tests without the matchConditions, on local control planes.
var everyWrite = os.Getenv("HOSTFORMAT_EVERY_WRITE") != ""

const giveCluster = "HOSTFORMAT_E2E_CLUSTER"

// root is the folder of this module.
var root string

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logf.SetLogger(logr.Discard()) // reconcilers that run in this process log nothing
	os.Exit(runTests(ctx, m))
}

func runTests(ctx context.Context, m *testing.M) int {
	var err error
	if root, err = filepath.Abs(filepath.Join("..", "..")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	flag.Parse()
	switch {
	case flag.Lookup("test.list").Value.String() != "":
		return m.Run()
	case given:
		return runGiven(ctx, m)
	}
	_ = os.Unsetenv("KUBECONFIG") // no program that is started may find it
	if _, err := local.Assets(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Tests that run side by side wait for clusters. If they waited for a place, too,
	// then the parts of a test could wait for the place of a test that waits for its
	// cluster.
	if err := flag.Set("test.parallel", "1000"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	interrupted = ctx
	defer func() {
		if err := errors.Join(ourCRDs.stop(), foreignCRDs.stop()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	return m.Run()
}

// runGiven runs the tests in the cluster that KUBECONFIG names. They create
// HostReplace operations and take the webhook away, so it must hold nothing
// that could be lost; what they create is deleted.
func runGiven(ctx context.Context, m *testing.M) int {
	fail := func(format string, args ...any) int {
		fmt.Fprintf(os.Stderr, "the cluster that KUBECONFIG names "+format+"\n", args...)
		return 1
	}
	ours, err := local.Connect(ctx, os.Getenv("KUBECONFIG"))
	if err != nil {
		return fail("cannot be used: %v", err)
	}
	ourCRDs.started = []*local.Cluster{ours}
	if out, err := ours.Kubectl(ctx, nil, "get", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "hostformat", "-o", "name"); err != nil {
		return fail("has no hostformat: install it as README.md says, or unset KUBECONFIG: %s", out)
	}
	all := slices.Sorted(maps.Keys(kinds))
	stored, err := ours.Kubectl(ctx, nil, "get", strings.Join(all, ","), "-o", "name")
	if err != nil {
		return fail("cannot be read: %s", stored)
	}
	if strings.Contains(stored, "/") {
		return fail("holds objects that these tests could harm; they run only where there are none:\n%s", stored)
	}
	fmt.Fprintf(os.Stderr, "e2e: testing in the cluster at %s\n", ours.Config.Host)
	code := m.Run()
	if out, err := ours.Kubectl(context.WithoutCancel(ctx), nil, "delete", strings.Join(all, ","), "--all"); err != nil {
		return fail("still holds what the tests created: %s", out)
	}
	return code
}

// needsLocal skips a test that needs processes of this machine, or CRDs of another
// project.
func needsLocal(t testing.TB) {
	t.Helper()
	if given {
		t.Skip("needs a control plane of its own: make e2e without KUBECONFIG")
	}
}

// takesLong skips a test that would make make test longer than five minutes.
func takesLong(t testing.TB) {
	t.Helper()
	if !everyWrite && os.Getenv("HOSTFORMAT_PROOF") == "" {
		t.Skip("part of make every-write, which CI runs, too")
	}
}

// needsPods skips a test that needs kubelets and Services.
func needsPods(t testing.TB) {
	t.Helper()
	if !given {
		t.Skip("needs a cluster that runs pods: make e2e-kind, or make e2e with its KUBECONFIG")
	}
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

// HandleWarningHeader is called by client-go, for each warning of an answer.
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

// client is a dynamic client of a cluster, and the warnings that it has received.
type client struct {
	dynamic.Interface
	*warnings
	cluster *local.Cluster
}

func newClient(t testing.TB, cluster *local.Cluster) client {
	t.Helper()
	config := rest.CopyConfig(cluster.Config)
	w := &warnings{}
	config.WarningHandler = w
	dynamicClient, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return client{dynamicClient, w, cluster}
}

func (c client) of(resource string) dynamic.ResourceInterface {
	resource, _, _ = strings.Cut(resource, "/")
	return c.Resource(v1alpha3.GroupVersion.WithResource(resource))
}

// deleteAll deletes every object of our kinds, whatever finalizers it has, and every
// claim.
func (c client) deleteAll(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	for resource := range kinds {
		all, err := c.of(resource).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for _, u := range all.Items {
			if len(u.GetFinalizers()) > 0 {
				_, err := c.of(resource).Patch(ctx, u.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				require.NoError(t, err)
			}
		}
		require.NoError(t, c.of(resource).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	leases := c.Resource(coordinationv1.SchemeGroupVersion.WithResource("leases")).Namespace(resolve.DefaultClaimNamespace)
	require.NoError(t, leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
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

// asserting is a test, or one try of a poll. A helper that polls use ends the
// try with it, which is then repeated; if it ended the test, the poll would go
// on as if what it waits for had come.
type asserting interface {
	require.TestingT
	Helper()
}

func get(t asserting, c client, resource, name string) *unstructured.Unstructured {
	t.Helper()
	u, err := c.of(resource).Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return u
}

var names atomic.Int64

// uniqueName keeps the objects of tests apart.
func uniqueName() string { return fmt.Sprintf("rack7-node-%d", names.Add(1)) }
