package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"unbounded-cloud.io/hostformat/certs"
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
	clientset, err := kubernetes.NewForConfig(ours.Config)
	require.NoError(t, err)
	i := installation{clientset, newClient(t, ours)}
	i.rolledOut(t, webhookDeployment)
	return i
}

// write sends a guarded write as a dry run, and says what is wrong with the
// answer: the image must come back trimmed.
func (i installation) write(ctx context.Context) error {
	stored, err := i.client.of("machines").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine",
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
		group.Wait()
		took := time.Since(start)
		t.Logf("%d writes in %s, %d failed", sent, took.Round(time.Second), len(failures))
		require.Empty(t, failures)
		require.Greater(t, float64(sent), 18*took.Seconds(), "twenty a second were sent")
	}
}

func (i installation) pods(t testing.TB, deployment string) []corev1.Pod {
	t.Helper()
	return i.podsIn(t, certs.Namespace, "app.kubernetes.io/name="+deployment)
}

func (i installation) podsIn(t testing.TB, namespace, selector string) []corev1.Pod {
	t.Helper()
	pods, err := i.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
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
		assert.Len(collect, i.podsIn(t, namespace, selector), wanted)
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
func forward(t *testing.T, pod string, port int) string {
	t.Helper()
	cmd := ours.Command(t.Context(), "port-forward", "-n", certs.Namespace, "pod/"+pod, fmt.Sprintf(":%d", port), "--address=127.0.0.1")
	out := &lockedBuffer{}
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

// Twenty guarded writes a second for three minutes, across two rollouts, a pod
// that is deleted and an eviction of each replica: none fails.
func TestNoCallIsLost(t *testing.T) {
	i := newInstallation(t)
	enough := time.After(3 * time.Minute)
	finish := i.load(t)
	for range 2 {
		out, err := ours.Kubectl(t.Context(), nil, "rollout", "restart", "-n", certs.Namespace, "deployment", webhookDeployment)
		require.NoError(t, err, out)
		i.rolledOut(t, webhookDeployment)
	}
	require.NoError(t, i.CoreV1().Pods(certs.Namespace).Delete(t.Context(), i.pods(t, webhookDeployment)[0].Name, metav1.DeleteOptions{}))
	i.rolledOut(t, webhookDeployment)
	for _, pod := range i.pods(t, webhookDeployment) {
		require.EventuallyWithT(t, func(collect *assert.CollectT) { // the disruption budget may say: not yet
			err := i.PolicyV1().Evictions(certs.Namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: certs.Namespace}})
			if !apierrors.IsNotFound(err) {
				assert.NoError(collect, err)
			}
		}, podPatience, interval)
		i.rolledOut(t, webhookDeployment)
	}
	i.gone(t, webhookDeployment, 2)
	<-enough
	finish()
}

// None but the controllers' leader works, and killing that one fails no call.
func TestLeaderIsKilled(t *testing.T) {
	i := newInstallation(t)
	if len(i.pods(t, controllerDeployment)) == 0 {
		t.Skip("the controllers are not installed")
	}
	lease := func() string {
		lease, err := i.CoordinationV1().Leases(certs.Namespace).Get(t.Context(), "hostformat-controllers", metav1.GetOptions{})
		require.NoError(t, err)
		return *lease.Spec.HolderIdentity
	}
	before := lease()
	finish := i.load(t)
	leader, _, _ := strings.Cut(before, "_")
	require.NoError(t, i.CoreV1().Pods(certs.Namespace).Delete(t.Context(), leader, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.NotEqual(collect, before, lease(), "another one takes over")
	}, podPatience, interval)
	finish()
	i.rolledOut(t, controllerDeployment)
}

// With no replica left, everything that does not travel to the webhook goes
// on, controllers that start meanwhile wait, and scaling up heals all.
func TestScaledToNothing(t *testing.T) {
	i := newInstallation(t)
	controllers := len(i.pods(t, controllerDeployment)) > 0
	if controllers {
		i.scaled(t, certs.Namespace, controllerDeployment, 0)
		i.gone(t, controllerDeployment, 0)
	}
	machine, operation := uniqueName(), uniqueName()
	store(t, i.client, "machines", object(t, "machines", machine, "spec: {host: {image: img-a, provisioningFormat: CloudInit, external: {provider: Simulated, providerID: id-7}}}"))
	store(t, i.client, "machineoperations", object(t, "machineoperations", operation, "spec: {operationKind: HostReplace, machineRef: "+machine+"}"))

	i.scaled(t, certs.Namespace, webhookDeployment, 0)
	failed := `failed calling webhook "machines.mutate.hostformat.unbounded-cloud.io"`
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.ErrorContains(collect, i.write(t.Context()), failed)
	}, podPatience, interval)
	i.gone(t, webhookDeployment, 0)

	_, err := i.client.of("machines").Patch(t.Context(), machine, types.MergePatchType, []byte(`{"status":{"observedProvisioningFormat":"CloudInit"}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err, "reports land")
	for _, manifest := range []string{
		"{apiVersion: v1, kind: Namespace, metadata: {name: scaled}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: scaled, namespace: default}}",
		"{apiVersion: v1, kind: Node, metadata: {name: scaled}}",
		"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: scaled, namespace: default}}",
		"{apiVersion: v1, kind: Pod, metadata: {name: scaled, namespace: default}, spec: {containers: [{name: a, image: hostformat:latest, imagePullPolicy: Never}]}}",
	} {
		for _, verb := range [][]string{{"apply"}, {"label", "a=b"}, {"delete", "--wait=false"}} {
			out, err := ours.Kubectl(t.Context(), []byte(manifest), append(verb, "-f", "-")...)
			require.NoError(t, err, out)
		}
	}
	if controllers {
		i.scale(t, certs.Namespace, controllerDeployment, 2)
		i.rolledOut(t, controllerDeployment)
		require.Eventually(t, func() bool { // it tries, and cannot write
			log, err := ours.Kubectl(t.Context(), nil, "logs", "-n", certs.Namespace, "-l", "app.kubernetes.io/name="+controllerDeployment, "--tail=-1")
			return err == nil && strings.Contains(log, "failed calling webhook")
		}, podPatience, interval)
		require.NotContains(t, get(t, i.client, "machineoperations", operation).Object, "status")
	}

	t.Run("the gate is opened and closed again", func(t *testing.T) {
		run(t, documented(t, "docs/operations.md", "## The webhook is down", "sh", 0))
		require.Eventually(t, func() bool {
			out, err := ours.Kubectl(t.Context(), nil, "annotate", "machine", machine, "a=b", "--overwrite")
			t.Log(out)
			return err == nil
		}, patience, interval, "it is open")
		out, err := ours.Kubectl(t.Context(), nil, "apply", "-k", overlay(t))
		require.NoError(t, err, out)
	})
	i.scale(t, certs.Namespace, webhookDeployment, 2)
	i.rolledOut(t, webhookDeployment)
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.NoError(collect, i.write(t.Context())) }, patience, interval)
	if controllers {
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			phase, _, _ := unstructured.NestedString(get(t, i.client, "machineoperations", operation).Object, "status", "phase")
			assert.Equal(collect, "Complete", phase)
		}, podPatience, interval)
	}
}

// What runs has as little as it needs, seen from its node and from its ports.
func TestPodsAreRestricted(t *testing.T) {
	i := newInstallation(t)
	ports := map[string]map[int]bool{webhookDeployment: {8081: false, 8443: true, 9443: true}, controllerDeployment: {8081: false, 8443: true}} // and whether TLS is spoken
	for deployment, wanted := range ports {
		for _, pod := range i.pods(t, deployment) {
			t.Run(pod.Name, func(t *testing.T) {
				for port, secure := range wanted {
					if secure {
						address := forward(t, pod.Name, port)
						_, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11})
						require.ErrorContains(t, err, "protocol version", "port %d", port)
						conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
						require.NoError(t, err)
						require.Equal(t, "http/1.1", conn.ConnectionState().NegotiatedProtocol)
						require.NoError(t, conn.Close())
					}
				}
				if exec.CommandContext(t.Context(), "docker", "exec", pod.Spec.NodeName, "true").Run() != nil {
					t.Skipf("looking at the process needs a node that is a container of docker here, as kind's are; %s is none", pod.Spec.NodeName)
				}
				process := inspect(t, pod)
				require.Equal(t, "65532 65532 65532 65532", process["Uid"])
				require.Equal(t, "65532 65532 65532 65532", process["Gid"])
				for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
					require.Equal(t, "0000000000000000", process[set], set)
				}
				require.Equal(t, "1", process["NoNewPrivs"])
				require.Equal(t, "2", process["Seccomp"], "filtered")
				require.Equal(t, "ro", process["root"])
				var listening []string
				for _, port := range slices.Sorted(maps.Keys(wanted)) {
					listening = append(listening, fmt.Sprint(port))
				}
				require.Equal(t, strings.Join(listening, " "), process["listening"])
				require.Equal(t, deployment == controllerDeployment, process["token"] != "", "only controllers call the API")
			})
		}
	}
}

// inspect looks at the one process of a pod from its node: fields of its
// status, how its root is mounted, the ports that it listens on, and whether a
// token of a ServiceAccount is mounted.
func inspect(t *testing.T, pod corev1.Pod) map[string]string {
	t.Helper()
	const script = `
for p in /proc/[0-9]*; do
	[ "$(readlink $p/exe)" = /webhook ] && grep -q "$0" $p/cgroup || continue
	tr '\t' ' ' < $p/status
	echo "root: $(awk '$2 == "/" { split($4, options, ","); print options[1] }' $p/mounts)"
	echo "token: $(grep -o serviceaccount $p/mounts | head -1)"
	echo "listening: $(cat $p/net/tcp $p/net/tcp6 | awk '$4 == "0A" { split($2, address, ":"); print address[2] }' | sort -u | while read port; do echo $((0x$port)); done | sort -n | xargs)"
done`
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	out, err := exec.CommandContext(t.Context(), "docker", "exec", pod.Spec.NodeName, "bash", "-c", script, id).CombinedOutput()
	require.NoError(t, err, string(out))
	process := map[string]string{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		require.NotContains(t, process, key, "one process")
		process[key] = strings.TrimSpace(value)
	}
	require.NotEmpty(t, process, "its process is found")
	return process
}

// A port that the NetworkPolicy does not name cannot be reached, where the
// network of the cluster enforces such policies.
func TestNetworkPolicy(t *testing.T) {
	i := newInstallation(t)
	webhook := i.pods(t, webhookDeployment)[0]
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: elsewhere
  namespace: %s
  labels: {app.kubernetes.io/name: %s}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: webhook
      image: %s
      imagePullPolicy: IfNotPresent
      args: ["--health-probe-bind-address=:9999"]
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`, certs.Namespace, webhookDeployment, webhook.Spec.Containers[0].Image)
	out, err := ours.Kubectl(t.Context(), []byte(manifest), "apply", "-f", "-")
	require.NoError(t, err, out)
	t.Cleanup(func() {
		out, err := ours.Kubectl(context.Background(), nil, "delete", "pod", "-n", certs.Namespace, "elsewhere", "--now")
		require.NoError(t, err, out)
	})
	out, err = ours.Kubectl(t.Context(), nil, "wait", "pod", "-n", certs.Namespace, "elsewhere", "--for=jsonpath={.status.phase}=Running", "--timeout=1m")
	require.NoError(t, err, out)
	reached := func(context.Context) (bool, error) {
		_, err := i.probe(t, "elsewhere", 9999, "/healthz")
		return err == nil, nil
	}
	if wait.PollUntilContextTimeout(t.Context(), interval, 10*time.Second, true, reached) == nil {
		t.Skip("the network of this cluster does not enforce NetworkPolicies: a port that none names can be reached")
	}
	_, err = i.probe(t, webhook.Name, 8081, "/healthz")
	require.NoError(t, err, "a port that it names can be reached")
}

// probe asks a pod through the API server, and returns what it answers.
func (i installation) probe(t testing.TB, pod string, port int, path string) (string, error) {
	out, err := i.CoreV1().RESTClient().Get().Namespace(certs.Namespace).Resource("pods").Name(fmt.Sprintf("%s:%d", pod, port)).
		SubResource("proxy").Suffix(path).Timeout(5 * time.Second).DoRaw(t.Context())
	return string(out), err
}

// post has a replica answer a review directly.
func (i installation) post(t testing.TB, address, path string, body []byte) *http.Response {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: i.trust(t), DisableKeepAlives: true}}
	response, err := client.Post("https://"+address+path, "application/json", strings.NewReader(string(body)))
	require.NoError(t, err)
	return response
}

// overlay is the folder of manifests that a given cluster was installed from:
// E2E_OVERLAY, or else one of the two that ship.
func overlay(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("E2E_OVERLAY"); dir != "" {
		return dir
	}
	way := "webhook-only"
	if _, err := ours.Kubectl(t.Context(), nil, "get", "deployment", "-n", certs.Namespace, controllerDeployment); err == nil {
		way = "standalone"
	}
	return ours.Root + "/manifests/" + way
}
