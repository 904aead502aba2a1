package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/test/local"
)

const (
	webhookDeployment    = "hostformat-webhook"
	controllerDeployment = "hostformat-controller"
	// podPatience is how long what kubelets do may take: they look at a Secret
	// that changed within a minute and a half.
	podPatience = 4 * time.Minute
)

// installation is hostformat as it runs in a given cluster.
type installation struct {
	*kubernetes.Clientset
	client client
}

func newInstallation(t *testing.T) installation {
	t.Helper()
	needsPods(t)
	cluster := ourCRDs.take(t)
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	require.NoError(t, err)
	i := installation{clientset, newClient(t, cluster)}
	i.rolledOut(t, webhookDeployment)
	return i
}

// write sends a guarded write as a dry run, and says what is wrong with the
// answer: the image must come back trimmed. The space inside it has the write
// travel in both directions.
func (i installation) write(ctx context.Context) error {
	stored, err := i.client.of("machines").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine",
		"metadata": map[string]any{"generateName": "load-"},
		"spec":     map[string]any{"host": map[string]any{"image": " img a ", "provisioningFormat": "CloudInit"}},
	}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	if image, _, _ := unstructured.NestedString(stored.Object, "spec", "host", "image"); image != "img a" {
		return fmt.Errorf("image %q was not trimmed", image)
	}
	return nil
}

// load sends twenty guarded writes a second until the function that it returns
// is called; that one requires each to have been answered.
func (i installation) load(t *testing.T) (finish func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	start := time.Now()
	var mu sync.Mutex
	var failures []string
	sent := 0
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			group.Go(func() {
				err := i.write(context.WithoutCancel(ctx))
				mu.Lock()
				defer mu.Unlock()
				if sent++; err != nil {
					failures = append(failures, time.Now().Format(time.TimeOnly)+" "+err.Error())
				}
			})
		}
	})
	return func() {
		t.Helper()
		stop()
		took := time.Since(start) // of sending: the last answers may take longer
		group.Wait()
		t.Logf("%d writes in %s, %d failed", sent, took.Round(time.Second), len(failures))
		require.Empty(t, failures)
		require.Greater(t, float64(sent), 18*took.Seconds(), "twenty a second were sent")
	}
}

func (i installation) pods(t asserting, deployment string) []corev1.Pod {
	t.Helper()
	return i.podsIn(t, certs.Namespace, "app.kubernetes.io/name="+deployment)
}

func (i installation) podsIn(t asserting, namespace, selector string) []corev1.Pod {
	t.Helper()
	pods, err := i.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: selector})
	require.NoError(t, err)
	return pods.Items
}

// rolledOut waits until a Deployment has as many new, available pods as it
// wants, and no other.
func (i installation) rolledOut(t *testing.T, name string) {
	t.Helper()
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		d, err := i.AppsV1().Deployments(certs.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if !assert.NoError(collect, err) {
			return
		}
		assert.Equal(collect, d.Generation, d.Status.ObservedGeneration)
		assert.Equal(collect, [3]int32{*d.Spec.Replicas, *d.Spec.Replicas, *d.Spec.Replicas},
			[3]int32{d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas}, "all, updated, available")
		assert.Len(collect, i.pods(collect, name), int(*d.Spec.Replicas), "none is still ending")
	}, podPatience, interval)
}

// gone waits until no pod is left but those that a Deployment wants.
func (i installation) gone(t *testing.T, deployment string, wanted int) {
	t.Helper()
	i.goneFrom(t, certs.Namespace, "app.kubernetes.io/name="+deployment, wanted)
}

func (i installation) goneFrom(t *testing.T, namespace, selector string, wanted int) {
	t.Helper()
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Len(collect, i.podsIn(collect, namespace, selector), wanted)
	}, podPatience, interval)
}

func (i installation) scale(t *testing.T, namespace, deployment string, replicas int) {
	t.Helper()
	_, err := i.AppsV1().Deployments(namespace).Patch(context.WithoutCancel(t.Context()), deployment, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
	require.NoError(t, err)
}

// scaled scales a Deployment for one test.
func (i installation) scaled(t *testing.T, namespace, deployment string, replicas int) {
	t.Helper()
	was, err := i.AppsV1().Deployments(namespace).Get(t.Context(), deployment, metav1.GetOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { i.scale(t, namespace, deployment, int(*was.Spec.Replicas)) })
	i.scale(t, namespace, deployment, replicas)
}

// forward returns an address of this machine that leads to a port of a pod.
func (i installation) forward(t *testing.T, pod string, port int) string {
	t.Helper()
	cmd := i.client.cluster.Command(t.Context(), "port-forward", "-n", certs.Namespace, "pod/"+pod, fmt.Sprintf(":%d", port), "--address=127.0.0.1")
	out := &local.Log{}
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var address string
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, rest, found := strings.Cut(out.String(), "Forwarding from ")
		address, _, _ = strings.Cut(rest, " ")
		assert.True(collect, found, out.String())
	}, patience, interval)
	return address
}

// trust is what the API server trusts the webhook by.
func (i installation) trust(t testing.TB) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(i.caBundle(t)))
	return &tls.Config{RootCAs: roots, ServerName: certs.DNSNames()[0]}
}

func (i installation) caBundle(t testing.TB) []byte {
	t.Helper()
	configuration, err := i.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "hostformat", metav1.GetOptions{})
	require.NoError(t, err)
	return configuration.Webhooks[0].ClientConfig.CABundle
}

// probe asks a pod through the API server, and returns what it answers.
func (i installation) probe(t testing.TB, pod string, port int, path string) (string, error) {
	out, err := i.CoreV1().RESTClient().Get().Namespace(certs.Namespace).Resource("pods").Name(fmt.Sprintf("%s:%d", pod, port)).
		SubResource("proxy").Suffix(path).Timeout(20 * time.Second).DoRaw(t.Context())
	return string(out), err
}

// overlay is the folder of manifests that a given cluster was installed from:
// E2E_OVERLAY, or else one of the two that ship, or what make e2e-kind installs.
func (i installation) overlay(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("E2E_OVERLAY"); dir != "" {
		return dir
	}
	way := "manifests/webhook-only"
	for object, overlay := range map[string]string{"deployment/" + controllerDeployment: "manifests/standalone", "role/hostformat-simulated": "test/e2e/testdata/trial"} {
		if _, err := i.client.cluster.Kubectl(t.Context(), nil, "get", object, "-n", certs.Namespace); err == nil && way != "test/e2e/testdata/trial" {
			way = overlay
		}
	}
	return filepath.Join(root, way)
}
