package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/operation/simulated"
	"unbounded-cloud.io/hostformat/test/local"
)

// TestMembers runs a control plane of two API servers over three members of etcd. Two
// controllers that both work, and the writers of guarded objects, each have one of the
// API servers. Each member and each API server is killed and paused in turn while hosts
// are replaced and writes go on: no answer is wrong, nothing that was acknowledged is
// lost, and each host is replaced once.
func TestMembers(t *testing.T) {
	if os.Getenv("HOSTFORMAT_PROOF") == "" && os.Getenv("HOSTFORMAT_EVERY_WRITE") == "" {
		t.Skip("takes a minute of both cores: part of make every-write, and whole of make proof")
	}
	members := startMembers(t)
	b := newTestbed(t, map[string]string{"etcd-servers": strings.Join(members.clientURLs(), ",")})
	second := startSecondAPIServer(t, b)
	secondClient, err := newClient(second.config)
	require.NoError(t, err)

	for _, kubeconfig := range []string{b.Kubeconfig, second.kubeconfig} {
		startController(t, b, kubeconfig, "--simulated-provider=delay=200ms,duration=1s")
	}

	type fault struct {
		name        string
		begin, mend func(t *testing.T)
	}
	var faults []fault
	for i := range members {
		faults = append(faults,
			fault{fmt.Sprintf("member %d killed", i+1), members[i].kill, members[i].start},
			fault{fmt.Sprintf("member %d paused", i+1), members[i].signal(syscall.SIGSTOP), members[i].signal(syscall.SIGCONT)})
	}
	firstAPIServer := func(signal syscall.Signal) func(*testing.T) {
		return func(t *testing.T) {
			pid, err := b.PID(local.APIServer)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(pid, signal))
		}
	}
	faults = append(faults,
		fault{"first API server paused", firstAPIServer(syscall.SIGSTOP), firstAPIServer(syscall.SIGCONT)},
		fault{"second API server killed", second.kill, second.start},
		fault{"first API server killed", b.kill(local.APIServer), b.start(local.APIServer)},
		fault{"second API server paused", second.signal(syscall.SIGSTOP), second.signal(syscall.SIGCONT)})
	if os.Getenv("HOSTFORMAT_PROOF") == "" {
		faults = []fault{faults[0], faults[7]}
	}
	var operations []string
	for i, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			l := startLoad(t, []*rest.RESTClient{b.client, secondClient}[i%2])
			operations = append(operations, replaceHosts(t, []*rest.RESTClient{b.client, secondClient}[i%2], fmt.Sprintf("rack-%d", i), 4))
			require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, len(actsOf(c, b)), 4*i) }, patience, interval) // in the middle
			fault.begin(t)
			<-time.After(outage) // not a wait for something, but the outage itself
			mended := time.Now()
			fault.mend(t)
			healed := l.healed(t, mended)
			l.report(t, fault.name, healed)
		})
	}
	for _, operation := range operations {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			var op struct {
				Status struct{ Phase, Message string }
			}
			raw, err := b.client.Get().Resource("machineoperations").Name(operation).Do(context.Background()).Raw()
			assert.NoError(c, err)
			assert.NoError(c, json.Unmarshal(raw, &op))
			assert.Equal(c, "Complete", op.Status.Phase, op.Status.Message)
		}, patience, interval)
	}
	acts := actsOf(t, b)
	for machine, n := range acts {
		require.Equal(t, 1, n, machine)
	}
	require.Len(t, acts, 4*len(faults))
	fmt.Printf("faults: two API servers, three members of etcd: %d hosts replaced once each, during %d faults\n", len(acts), len(faults))
}

// actsOf returns how often the host of each Machine was replaced, as the provider
// recorded it.
func actsOf(t require.TestingT, b *testbed) map[string]int {
	clientset, err := kubernetes.NewForConfig(b.Config)
	require.NoError(t, err)
	records, err := clientset.CoreV1().ConfigMaps(simulated.Namespace).Get(context.Background(), "simulated-provider", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	acts := map[string]int{}
	for key, text := range records.Data {
		if strings.HasSuffix(key, ".host") { // what it knows of the host
			continue
		}
		var record simulated.Record
		require.NoError(t, json.Unmarshal([]byte(text), &record))
		if record.Machine != "" && record.DestructiveCalls > 0 {
			acts[record.Machine] += record.DestructiveCalls
		}
	}
	return acts
}

// process is one that can be killed, paused and started again.
type process struct {
	args []string
	cmd  *exec.Cmd
	up   func() bool
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, p.cmd.Start())
	require.Eventually(t, p.up, patience, interval)
}

func (p *process) signal(signal syscall.Signal) func(*testing.T) {
	return func(t *testing.T) { require.NoError(t, p.cmd.Process.Signal(signal)) }
}

func (p *process) kill(*testing.T) {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// answers reports whether a URL is answered with 200.
func answers(client *http.Client, url string) bool {
	response, err := client.Get(url)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// members are those of one etcd.
type members []*process

func startMembers(t *testing.T) (all members) {
	t.Helper()
	var cluster, peers, clients []string
	for i := range 3 {
		peer, err := local.FreeAddress()
		require.NoError(t, err)
		client, err := local.FreeAddress()
		require.NoError(t, err)
		peers, clients = append(peers, "http://"+peer), append(clients, "http://"+client)
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, peer))
	}
	assets, err := local.Assets(t.Context())
	require.NoError(t, err)
	for i := range 3 {
		name := fmt.Sprintf("m%d", i)
		all = append(all, &process{
			args: []string{filepath.Join(assets, local.Etcd), "--name", name, "--data-dir", filepath.Join(t.TempDir(), name), "--log-level", "error", "--unsafe-no-fsync",
				"--initial-cluster", strings.Join(cluster, ","), "--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
				"--listen-client-urls", clients[i], "--advertise-client-urls", clients[i]},
			up: func() bool { return true },
		})
		all[i].start(t)
		t.Cleanup(func() { all[i].kill(t) })
	}
	for i := range all {
		all[i].up = func() bool { return answers(http.DefaultClient, clients[i]+"/health") }
		require.Eventually(t, all[i].up, patience, interval)
	}
	return all
}

func (m members) clientURLs() (urls []string) {
	for _, member := range m {
		urls = append(urls, member.args[len(member.args)-1])
	}
	return urls
}

// secondAPIServer has the flags of the first but for its port.
type secondAPIServer struct {
	process
	config     *rest.Config
	kubeconfig string
}

func startSecondAPIServer(t *testing.T, b *testbed) *secondAPIServer {
	t.Helper()
	pid, err := b.PID(local.APIServer)
	require.NoError(t, err)
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	require.NoError(t, err)
	address, err := local.FreeAddress()
	require.NoError(t, err)
	s := &secondAPIServer{config: rest.CopyConfig(b.Config), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	s.args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	found := false
	for i, arg := range s.args {
		if strings.HasPrefix(arg, "--secure-port=") {
			s.args[i], found = "--secure-port="+address[strings.LastIndex(address, ":")+1:], true
		}
	}
	require.True(t, found, s.args)
	content, err := os.ReadFile(b.Kubeconfig)
	require.NoError(t, err)
	host, err := url.Parse(b.Config.Host)
	require.NoError(t, err)
	first := host.Host
	require.Contains(t, string(content), first)
	require.NoError(t, os.WriteFile(s.kubeconfig, []byte(strings.ReplaceAll(string(content), first, address)), 0o600))
	s.config.Host = strings.Replace(b.Config.Host, first, address, 1)
	client, err := rest.HTTPClientFor(s.config)
	require.NoError(t, err)
	s.up = func() bool { return answers(client, "https://"+address+"/readyz") }
	s.start(t)
	t.Cleanup(func() { s.kill(t) })
	return s
}

func startController(t *testing.T, b *testbed, kubeconfig string, args ...string) {
	t.Helper()
	cmd := b.Controllers(kubeconfig, "*", args...)
	log := &local.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text := log.String()
			t.Log(text[max(0, len(text)-10_000):])
		}
	})
}

// replaceHosts creates Machines and an operation on them, and returns its name. Each
// write is tried until it is answered.
func replaceHosts(t *testing.T, client *rest.RESTClient, rack string, machines int) string {
	t.Helper()
	create := func(resource, kind, name string, spec map[string]any) {
		t.Helper()
		raw, err := json.Marshal(map[string]any{"apiVersion": v1alpha3.GroupVersion.String(), "kind": kind,
			"metadata": map[string]any{"name": name, "labels": map[string]any{"rack": rack}}, "spec": spec})
		require.NoError(t, err)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			err := client.Post().Resource(resource).Body(raw).Do(context.Background()).Error()
			if !apierrors.IsAlreadyExists(err) { // the answer to the try before was lost
				assert.NoError(c, err)
			}
		}, patience, interval)
	}
	for i := range machines {
		name := fmt.Sprintf("%s-%d", rack, i)
		create("machines", "Machine", name, map[string]any{"host": map[string]any{
			"image": "img-m", "provisioningFormat": "CloudInit", "external": map[string]any{"provider": simulated.Name, "providerID": name}}})
	}
	create("machineoperations", "MachineOperation", rack, map[string]any{"operationKind": "HostReplace",
		"machineSelector": map[string]any{"matchLabels": map[string]any{"rack": rack}}, "parameters": map[string]any{"maxInFlight": "2"}})
	return rack
}
