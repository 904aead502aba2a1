package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"unbounded-cloud.io/hostformat/certs"
)

// What runs has as little as it needs, seen from its node and from its ports.
func TestPodsAreRestricted(t *testing.T) {
	i := newInstallation(t)
	ports := map[string]map[int]bool{webhookDeployment: {8081: false, 8443: true, 9443: true}, controllerDeployment: {8081: false, 8443: true}} // and whether TLS is spoken
	for deployment, wanted := range ports {
		for _, pod := range i.pods(t, deployment) {
			t.Run(pod.Name, func(t *testing.T) {
				for port, secure := range wanted {
					if secure {
						address := i.forward(t, pod.Name, port)
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
// network of the cluster enforces such policies: that is asked first, with a
// policy of the test's own that lets nothing in.
func TestNetworkPolicy(t *testing.T) {
	i := newInstallation(t)
	webhook := i.pods(t, webhookDeployment)[0]
	// It has no certificate, so that it never gets calls though it turns into a
	// pod of the webhook.
	i.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: elsewhere
  namespace: %s
  labels: {test: elsewhere}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: webhook
      image: %s
      imagePullPolicy: IfNotPresent
      args: ["--health-probe-bind-address=:9999"]
      readinessProbe: {httpGet: {path: /readyz, port: 9999}}
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`, certs.Namespace, webhook.Spec.Containers[0].Image))
	// reached reports whether the port can be connected to, now: policies leave
	// alone what is connected already, and the API server keeps what it can use
	// again. So it is asked to speak TLS there, which is answered and never kept.
	reached := func() bool {
		answer, err := i.probe(t, "https:elsewhere", 9999, "/healthz")
		return strings.Contains(fmt.Sprint(answer, err), "first record does not look like a TLS handshake")
	}
	becomes := func(wanted bool, patience time.Duration) bool {
		return wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(context.Context) (bool, error) {
			for range 3 { // one may get lost
				if reached() != wanted {
					return false, nil
				}
			}
			return true, nil
		}) == nil
	}
	require.True(t, becomes(true, podPatience), "it listens")
	closed := fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: elsewhere, namespace: %s}
spec: {podSelector: {matchLabels: {test: elsewhere}}, policyTypes: [Ingress]}
`, certs.Namespace)
	i.apply(t, closed)
	if !becomes(false, time.Minute) {
		t.Skip("NetworkPolicies are not enforced here, on the way from the API server: a pod that one lets nothing into is reached")
	}
	out, err := i.client.cluster.Kubectl(t.Context(), []byte(closed), "delete", "-f", "-")
	require.NoError(t, err, out)
	require.True(t, becomes(true, time.Minute), "without that policy it is reached again")
	out, err = i.client.cluster.Kubectl(t.Context(), nil, "label", "pod", "-n", certs.Namespace, "elsewhere", "app.kubernetes.io/name="+webhookDeployment)
	require.NoError(t, err, out)
	require.True(t, becomes(false, time.Minute), "NetworkPolicies are enforced here, and ours does not name this port")
	_, err = i.probe(t, webhook.Name, 8081, "/healthz")
	require.NoError(t, err, "a port that it names can be reached")
}

// apply creates an object for one test.
func (i installation) apply(t *testing.T, manifest string) {
	t.Helper()
	out, err := i.client.cluster.Kubectl(t.Context(), []byte(manifest), "apply", "-f", "-")
	require.NoError(t, err, out)
	t.Cleanup(func() {
		out, err := i.client.cluster.Kubectl(context.Background(), []byte(manifest), "delete", "-f", "-", "--now", "--ignore-not-found")
		require.NoError(t, err, out)
	})
}
