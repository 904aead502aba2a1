package e2e

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/test/local"
)

// probe reads a path of a process, and returns the answer and its status code.
func probe(t asserting, address string) (string, int) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	response, err := client.Get(address)
	if !assert.NoError(t, err) {
		return "", 0
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	assert.NoError(t, err)
	return string(body), response.StatusCode
}

// A controller that may not list what it works from is not ready, and says which
// permission is missing, on the leader as on the standby. It becomes ready by itself. In
// one process with the webhook, the webhook is ready and serves all the same.
func TestControllerThatMayNotRead(t *testing.T) {
	needsLocal(t)
	takesLong(t)
	ours := ourCRDs.take(t)
	kubectl := func(args ...string) {
		t.Helper()
		out, err := ours.Kubectl(t.Context(), nil, args...)
		require.NoError(t, err, out)
	}
	user := "somebody-" + uniqueName()
	kubeconfig, err := ours.KubeconfigFor(t.TempDir(), user)
	require.NoError(t, err)
	grant := func(name, resources string, verbs string) {
		kubectl("create", "clusterrole", user+name, "--verb="+verbs, "--resource="+resources)
		kubectl("create", "clusterrolebinding", user+name, "--clusterrole="+user+name, "--user="+user)
		t.Cleanup(func() {
			_, _ = ours.Kubectl(context.Background(), nil, "delete", "clusterrole,clusterrolebinding", user+name, "--ignore-not-found")
		})
	}
	of := func(names ...string) string {
		for i := range names {
			names[i] += "." + v1alpha3.GroupVersion.Group
		}
		return strings.Join(names, ",")
	}
	grant("-most", of("machines", "machineconfigurations", "machineconfigurationversions"), "get,list,watch")
	grant("-leases", "leases.coordination.k8s.io", "get,create,update,patch")

	addresses := map[string][2]string{}
	for name, args := range map[string][]string{"alone": nil, "the leader": {"--leader-elect", "--leader-election-namespace=default"}, "the standby": {"--leader-elect", "--leader-election-namespace=default"}} {
		health, metrics := address(t), address(t)
		startControllers(t, ours, kubeconfig, "*,machineconfiguration", append(args, "--health-probe-bind-address="+health, "--metrics-bind-address="+metrics)...)
		addresses[name] = [2]string{"http://" + health + "/readyz", "https://" + metrics + "/metrics"}
	}
	health, metrics, serving, dir := address(t), address(t), address(t), t.TempDir()
	ca, err := certs.NewCA()
	require.NoError(t, err)
	require.NoError(t, ca.IssueTo(dir, time.Hour, "127.0.0.1"))
	at, port, err := net.SplitHostPort(serving)
	require.NoError(t, err)
	both := exec.Command(ours.Program("webhook"), "--host="+at, "--port="+port, "--cert-dir="+dir, "--controllers=*,machineconfiguration", "--kubeconfig="+kubeconfig,
		"--health-probe-bind-address="+health, "--metrics-bind-address="+metrics, "--log-format=text")
	both.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	startProcess(t, both)
	combined := [2]string{"http://" + health + "/readyz", "https://" + metrics + "/metrics"}

	says := func(want string, ready bool) {
		t.Helper()
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			for name, at := range addresses {
				body, code := probe(collect, at[0])
				assert.Equal(collect, ready, code == http.StatusOK, name+": "+body)
				assert.Contains(collect, body, want, name)
			}
			body, code := probe(collect, combined[0])
			assert.Equal(collect, http.StatusOK, code, "the webhook is ready: "+body)
			body, code = probe(collect, "https://"+serving+"/validate")
			assert.Equal(collect, http.StatusOK, code, "and serves: "+body)
			value := map[bool]string{true: "1", false: "0"}[ready]
			for _, at := range append([][2]string{combined}, addresses["alone"], addresses["the standby"]) {
				body, _ := probe(collect, at[1])
				assert.Contains(collect, body, `hostformat_controller_ready{controller="hostreplace"} `+value+"\n")
				assert.Contains(collect, body, `hostformat_controller_ready{controller="machineconfiguration"} 1`+"\n")
			}
		}, patience, time.Second)
	}
	says(`controller hostreplace cannot work: machineoperations: machineoperations.unbounded-cloud.io is forbidden: User "`+user+`" cannot list resource "machineoperations"`, false)
	grant("-list", of("machineoperations"), "get,list")
	says(`controller hostreplace cannot work: machineoperations: `, false)
	grant("-watch", of("machineoperations"), "watch")
	says("ok", true)
}

// A process that starts while the API server is down is not ready, and becomes ready
// when the API server is back.
func TestControllerBeforeTheAPIServer(t *testing.T) {
	needsLocal(t)
	takesLong(t)
	ours := ourCRDs.take(t)
	host, err := url.Parse(ours.Config.Host)
	require.NoError(t, err)
	down := address(t)
	content, err := os.ReadFile(ours.Kubeconfig)
	require.NoError(t, err)
	require.Contains(t, string(content), host.Host)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(string(content), host.Host, down)), 0o600))
	health := address(t)
	startControllers(t, ours, kubeconfig, "*,machineconfiguration", "--health-probe-bind-address="+health)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		body, code := probe(collect, "http://"+health+"/readyz")
		assert.Equal(collect, http.StatusServiceUnavailable, code)
		assert.Contains(collect, body, "controller hostreplace cannot work: machineoperations: the cache is not filled yet")
		assert.Contains(collect, body, "connection refused")
	}, patience, interval)
	forward(t, down, host.Host)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		body, code := probe(collect, "http://"+health+"/readyz")
		assert.Equal(collect, http.StatusOK, code, body)
	}, patience, interval)
}

// address returns a free one.
func address(t *testing.T) string {
	t.Helper()
	free, err := local.FreeAddress()
	require.NoError(t, err)
	return free
}

// forward passes connections on to another address until the test ends.
func forward(t *testing.T, from, to string) {
	t.Helper()
	listener, err := net.Listen("tcp", from)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go func() {
				defer in.Close()
				_, _ = io.Copy(in, out)
			}()
			go func() {
				defer out.Close()
				_, _ = io.Copy(out, in)
			}()
		}
	}()
}
