package e2e

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"unbounded-cloud.io/hostformat/test/local"
)

// The leader is asked to end while a call is outstanding. A call that returns soon is
// recorded, one that does not is canceled and looked up by the next leader; the host is
// replaced once. Only then is the Lease given up, and the standby takes it at once, not
// when it expires.
func TestLeaderEnds(t *testing.T) {
	needsLocal(t)
	takesLong(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for name, test := range map[string]struct {
		first    string // how its provider behaves; empty: no call is outstanding
		attempts int64
	}{
		"idle":                          {"", 1},
		"during a call that returns":    {"delay=2s", 1},
		"during a call that takes long": {"delay=1h", 2},
	} {
		t.Run(name, func(t *testing.T) {
			elected := []string{"--leader-elect", "--leader-election-namespace=default"}
			t.Cleanup(func() {
				out, err := ours.Kubectl(context.Background(), nil, "delete", "lease", "-n", "default", "hostformat-controllers", "--ignore-not-found")
				require.NoError(t, err, out)
			})
			first := startControllers(t, ours, ours.Kubeconfig, "*", append(elected, "--simulated-provider="+test.first)...)
			var leader string
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				leader = holderOf(collect, ours)
				assert.NotEmpty(collect, leader)
			}, patience, interval)
			standby := startControllers(t, ours, ours.Kubeconfig, "*", elected...)
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				assert.Contains(collect, standby.log.String(), "Attempting to acquire leader lease")
			}, patience, interval)
			machine, op := newMachine(t, c), ""
			if test.first != "" {
				op = newOperation(t, c, machine)
				require.EventuallyWithT(t, func(collect *assert.CollectT) {
					if targets := targetsOf(get(collect, c, "machineoperations", op)); assert.NotEmpty(collect, targets) {
						assert.EqualValues(collect, 1, targets[0].(map[string]any)["attempts"])
					}
				}, patience, interval)
			}
			require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
			<-first.done
			ended := time.Now()
			require.True(t, first.cmd.ProcessState.Success(), first.log.String())
			require.NotEqual(t, leader, holderOf(t, ours), "the Lease was given up")
			require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.NotEmpty(collect, holderOf(collect, ours)) }, patience, interval)
			taken := time.Since(ended)
			t.Logf("taken after %s", taken)
			require.Less(t, taken, 12*time.Second, "before it would have expired")
			if op == "" {
				op = newOperation(t, c, machine)
			}
			done := finished(t, c, op)
			require.Equal(t, "Complete", phase(done), message(done))
			require.EqualValues(t, test.attempts, targetOf(t, done, 0)["attempts"])
			require.Equal(t, 1, calls(t, ours, done, machine).DestructiveCalls)
		})
	}
}

// holderOf returns which process is the leader.
func holderOf(t asserting, cluster *local.Cluster) string {
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	require.NoError(t, err)
	lease, err := clientset.CoordinationV1().Leases("default").Get(context.Background(), "hostformat-controllers", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
