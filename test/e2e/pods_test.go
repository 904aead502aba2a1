// Package kind tests what takes pods: the webhook as it is installed, on a
// kind cluster that make e2e-kind creates. Without one it skips itself.
package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/certs"
)

const (
	patience = 2 * time.Minute
	interval = 200 * time.Millisecond
	selector = "app.kubernetes.io/name=hostformat-webhook"
	name     = "hostformat-webhook"
)

// cluster is the kind cluster.
type cluster struct {
	*kubernetes.Clientset
	machines dynamic.ResourceInterface
}

func connect(t *testing.T) cluster {
	t.Helper()
	kubeconfig := os.Getenv("KIND_KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("KIND_KUBECONFIG is not set: make e2e-kind creates a cluster for this")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	clientset, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	dynamicClient, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return cluster{clientset, dynamicClient.Resource(v1alpha3.GroupVersion.WithResource("machines"))}
}

// write sends a guarded write as a dry run, and says what is wrong with the
// answer: the image must come back trimmed.
func (c cluster) write(ctx context.Context) error {
	stored, err := c.machines.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha3.GroupVersion.String(), "kind": "Machine",
		"metadata": map[string]any{"generateName": "load-"},
		"spec":     map[string]any{"host": map[string]any{"image": " img-a ", "provisioningFormat": "CloudInit"}},
	}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	if image, _, _ := unstructured.NestedString(stored.Object, "spec", "host", "image"); image != "img-a" {
		return fmt.Errorf("image %q was not trimmed", image)
	}
	return nil
}

func (c cluster) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := c.CoreV1().Pods(certs.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	require.NoError(t, err)
	return pods.Items
}

// rolledOut waits until the Deployment has as many new, ready pods as it wants.
func (c cluster) rolledOut(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		d, err := c.AppsV1().Deployments(certs.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if !assert.NoError(collect, err) {
			return
		}
		assert.Equal(collect, d.Generation, d.Status.ObservedGeneration)
		assert.Equal(collect, appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas, UpdatedReplicas: *d.Spec.Replicas,
			ReadyReplicas: *d.Spec.Replicas, AvailableReplicas: *d.Spec.Replicas, Conditions: d.Status.Conditions, TerminatingReplicas: d.Status.TerminatingReplicas}, d.Status)
	}, patience, interval)
}

// Twenty guarded writes a second, across two rollouts, a pod that is deleted
// and an eviction of each replica: none fails.
func TestNoCallIsLost(t *testing.T) {
	c := connect(t)
	c.rolledOut(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
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
				group.Go(func() {
					err := c.write(context.WithoutCancel(ctx))
					mu.Lock()
					defer mu.Unlock()
					if sent++; err != nil {
						failures = append(failures, time.Now().Format(time.TimeOnly)+" "+err.Error())
					}
				})
			}
		}
	})
	start := time.Now()
	for range 2 {
		restart := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"restarted":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
		_, err := c.AppsV1().Deployments(certs.Namespace).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(restart), metav1.PatchOptions{})
		require.NoError(t, err)
		c.rolledOut(t)
	}
	require.NoError(t, c.CoreV1().Pods(certs.Namespace).Delete(t.Context(), c.pods(t)[0].Name, metav1.DeleteOptions{}))
	c.rolledOut(t)
	for _, pod := range c.pods(t) {
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			err := c.PolicyV1().Evictions(certs.Namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: certs.Namespace}})
			if !apierrors.IsNotFound(err) {
				assert.NoError(collect, err)
			}
		}, patience, interval)
		c.rolledOut(t)
	}
	// The pods that were told to go must be gone while calls still come.
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Len(collect, c.pods(t), 2)
	}, patience, interval)
	for time.Since(start) < duration(t) {
		<-time.After(time.Second)
	}
	stop()
	group.Wait()
	t.Logf("%d writes in %s, %d failed", sent, time.Since(start).Round(time.Second), len(failures))
	require.Empty(t, failures)
	require.Greater(t, sent, 500)
}

// duration is how long calls are sent at least.
func duration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("KIND_LOAD")
	if text == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// Every replica answers, one by one, and none but the controller's leader
// works; killing that one fails no call.
func TestLeaderIsKilled(t *testing.T) {
	c := connect(t)
	c.rolledOut(t)
	lease := func() string {
		lease, err := c.CoordinationV1().Leases(certs.Namespace).Get(t.Context(), "hostformat-controllers", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			t.Skip("the controller is not installed")
		}
		require.NoError(t, err)
		return *lease.Spec.HolderIdentity
	}
	before := lease()
	leader, _, _ := strings.Cut(before, "_")
	require.NoError(t, c.CoreV1().Pods(certs.Namespace).Delete(t.Context(), leader, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	var failures []error
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		if err := c.write(t.Context()); err != nil {
			failures = append(failures, err)
		}
		assert.NotEqual(collect, before, lease(), "another one takes over")
	}, patience, interval)
	require.Empty(t, failures)
}

// With no replica left, everything that does not travel to the webhook goes
// on, and scaling up heals without a further step.
func TestScaledToNothing(t *testing.T) {
	c := connect(t)
	machine := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha3.GroupVersion.String(), "kind": "Machine", "metadata": map[string]any{"generateName": "scaled-"}}}
	machine, err := c.machines.Create(t.Context(), machine, metav1.CreateOptions{})
	require.NoError(t, err)
	scale := func(replicas int) {
		t.Helper()
		_, err := c.AppsV1().Deployments(certs.Namespace).Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	scale(0)
	t.Cleanup(func() {
		_, err := c.AppsV1().Deployments(certs.Namespace).Patch(context.Background(), name, types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	})
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.Error(collect, c.write(t.Context())) }, patience, interval)
	require.ErrorContains(t, c.write(t.Context()), `failed calling webhook "machines.mutate.hostformat.unbounded-cloud.io"`)

	_, err = c.machines.Patch(t.Context(), machine.GetName(), types.MergePatchType, []byte(`{"status":{"observedProvisioningFormat":"Ignition"}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err, "reports land")
	for _, manifest := range []string{
		"{apiVersion: v1, kind: Namespace, metadata: {name: scaled}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: scaled, namespace: default}}",
		"{apiVersion: v1, kind: Node, metadata: {name: scaled}}",
		"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: scaled, namespace: default}}",
		"{apiVersion: v1, kind: Pod, metadata: {name: scaled, namespace: default}, spec: {containers: [{name: a, image: hostformat:latest, imagePullPolicy: Never}]}}",
	} {
		out, err := kubectl(t, manifest, "apply", "-f", "-")
		require.NoError(t, err, out)
		out, err = kubectl(t, manifest, "delete", "--wait=false", "-f", "-")
		require.NoError(t, err, out)
	}
	scale(2)
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.NoError(collect, c.write(t.Context())) }, patience, interval)
	require.NoError(t, c.machines.Delete(t.Context(), machine.GetName(), metav1.DeleteOptions{}))
}

// The pods run with as little as they need.
func TestPodsAreRestricted(t *testing.T) {
	c := connect(t)
	c.rolledOut(t)
	for _, pod := range c.pods(t) {
		require.True(t, *pod.Spec.SecurityContext.RunAsNonRoot)
		require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.Spec.SecurityContext.SeccompProfile.Type)
		require.Len(t, pod.Spec.Containers, 1)
		container := pod.Spec.Containers[0]
		require.True(t, *container.SecurityContext.ReadOnlyRootFilesystem)
		require.False(t, *container.SecurityContext.AllowPrivilegeEscalation)
		require.Equal(t, []corev1.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop)
		for _, mount := range container.VolumeMounts {
			require.Equal(t, "tls", mount.Name, "no token among them")
		}
	}
}

// Undoing it removes all that is ours, and nothing that is stored.
func TestUndo(t *testing.T) {
	c := connect(t)
	overlay := os.Getenv("KIND_OVERLAY")
	for i := range 100 {
		_, err := c.machines.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha3.GroupVersion.String(), "kind": "Machine", "metadata": map[string]any{"name": fmt.Sprintf("undo-%03d", i)}}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	before, err := c.machines.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	out, err := kubectl(t, "", "delete", "-k", overlay, "--timeout=3m")
	require.NoError(t, err, out)
	after, err := c.machines.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, encode(t, before.Items), encode(t, after.Items))
	_, err = c.machines.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha3.GroupVersion.String(), "kind": "Machine", "metadata": map[string]any{"name": "undone"}}}, metav1.CreateOptions{})
	require.NoError(t, err, "nothing is locked")
	_, err = c.CoreV1().Namespaces().Get(t.Context(), certs.Namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

func encode(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return string(text)
}

func kubectl(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "kubectl", args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+os.Getenv("KIND_KUBECONFIG"))
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
