package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"unbounded-cloud.io/hostformat/certs"
)

// Twenty guarded writes a second for three minutes, across two rollouts, a pod
// that is deleted and an eviction of each replica: none fails.
func TestNoCallIsLost(t *testing.T) {
	i := newInstallation(t)
	enough := time.After(3 * time.Minute)
	finish := i.load(t)
	for range 2 {
		out, err := i.client.cluster.Kubectl(t.Context(), nil, "rollout", "restart", "-n", certs.Namespace, "deployment", webhookDeployment)
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
	holder := func(other string) (now string) { // another than that one
		t.Helper()
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			lease, err := i.CoordinationV1().Leases(certs.Namespace).Get(t.Context(), "hostformat-controllers", metav1.GetOptions{})
			if assert.NoError(collect, err) {
				now = ptr.Deref(lease.Spec.HolderIdentity, "")
				assert.NotContains(collect, []string{"", other}, now)
			}
		}, podPatience, interval)
		return now
	}
	before := holder("")
	finish := i.load(t)
	leader, _, _ := strings.Cut(before, "_")
	require.NoError(t, i.CoreV1().Pods(certs.Namespace).Delete(t.Context(), leader, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	holder(before)
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
			out, err := i.client.cluster.Kubectl(t.Context(), []byte(manifest), append(verb, "-f", "-")...)
			require.NoError(t, err, out)
		}
	}
	if controllers {
		i.scale(t, certs.Namespace, controllerDeployment, 2)
		i.rolledOut(t, controllerDeployment)
		require.Eventually(t, func() bool { // it tries, and cannot write
			log, err := i.client.cluster.Kubectl(t.Context(), nil, "logs", "-n", certs.Namespace, "-l", "app.kubernetes.io/name="+controllerDeployment, "--tail=-1")
			return err == nil && strings.Contains(log, "failed calling webhook")
		}, podPatience, interval)
		require.NotContains(t, get(t, i.client, "machineoperations", operation).Object, "status")
	}

	t.Run("the gate is opened and closed again", func(t *testing.T) {
		i.run(t, documented(t, "docs/operations.md", "## The webhook is down", "sh", 0))
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			assert.ErrorContains(collect, i.write(t.Context()), "was not trimmed")
		}, patience, interval, "it is open")
		out, err := i.client.cluster.Kubectl(t.Context(), nil, "apply", "-k", i.overlay(t))
		require.NoError(t, err, out)
	})
	i.scale(t, certs.Namespace, webhookDeployment, 2)
	i.rolledOut(t, webhookDeployment)
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.NoError(collect, i.write(t.Context())) }, patience, interval)
	if controllers {
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			phase, _, _ := unstructured.NestedString(get(collect, i.client, "machineoperations", operation).Object, "status", "phase")
			assert.Equal(collect, "Complete", phase)
		}, podPatience, interval)
	}
}
