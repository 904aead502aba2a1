package e2e

import (
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/test/local"
)

// An API server that is configured as docs/operations.md says shows a
// certificate that --client-ca asks for; whoever shows none is not answered.
func TestClientCertificateOfTheAPIServer(t *testing.T) {
	needsLocal(t)
	dir := t.TempDir()
	ca, err := certs.NewCA()
	require.NoError(t, err)
	certPEM, keyPEM, err := ca.IssueClient(time.Hour, "kube-apiserver")
	require.NoError(t, err)
	file := func(name string, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	shown := func(n int) string {
		block := documented(t, "docs/operations.md", "## Only the API server may call", "yaml", n)
		require.Contains(t, block, "/etc/kubernetes/hostformat/")
		return strings.ReplaceAll(block, "/etc/kubernetes/hostformat/", dir+"/")
	}
	config := file("admission.yaml", shown(0))
	// Here the webhook is reached at an address, and not through its Service.
	kubeconfig := shown(1)
	require.Contains(t, kubeconfig, "name: "+certs.DNSNames()[0])
	file("kubeconfig.yaml", strings.Replace(kubeconfig, certs.DNSNames()[0], "'*'", 1))
	file("client.crt", string(certPEM))
	file("client.key", string(keyPEM))

	// It starts, and judges writes.
	cluster := takeOwn(t, local.Options{Args: []string{"--client-ca", file("ca.crt", string(ca.PEM))}, APIServer: map[string]string{
		"admission-control-config-file": config,
		"audit-policy-file":             file("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, resources: [{group: unbounded-cloud.io}]}]\n"),
		"audit-log-path":                filepath.Join(dir, "audit.log"),
	}})

	auditLogTells(t, cluster, filepath.Join(dir, "audit.log"))

	// Another API server has no certificate to show.
	ours := ourCRDs.takeMore(t)
	target := cluster.ClientConfig("/validate")
	_, err = (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Post(*target.URL, "application/json", strings.NewReader("{}"))
	require.ErrorContains(t, err, "certificate required")
	clientset, err := kubernetes.NewForConfig(ours.Config)
	require.NoError(t, err)
	_, configuration, err := ours.WebhookConfigurations()
	require.NoError(t, err)
	second := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "client-ca"}, Webhooks: configuration.Webhooks[:1]}
	second.Webhooks[0].ClientConfig = target
	second.Webhooks[0].MatchConditions = nil
	second.Webhooks[0].ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"client-ca": "asked-for"}}
	_, err = clientset.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), second, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		out, err := ours.Kubectl(context.Background(), nil, "delete", "validatingwebhookconfiguration", second.Name)
		assert.NoError(t, err, out)
	})
	c := newClient(t, ours)
	machine := object(t, "machines", uniqueName(), "{}")
	machine.SetLabels(map[string]string{"client-ca": "asked-for"})
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, err := c.of("machines").Create(t.Context(), machine, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		assert.ErrorContains(collect, err, "failed calling webhook")
		assert.ErrorContains(collect, err, "certificate required")
	}, patience, interval)
}

// auditLogTells looks for what the webhook says in the API server's audit log:
// the rule that is broken, and where the halves of a pair come from if a write
// that breaks none is sent to the webhook.
func auditLogTells(t *testing.T, cluster *local.Cluster, path string) {
	t.Helper()
	c := newClient(t, cluster)
	_, err := c.of("machines").Create(t.Context(), object(t, "machines", "refused", `spec: {host: {image: "a\u200bb"}}`), metav1.CreateOptions{})
	require.Error(t, err)
	_, err = c.of("machines").Create(t.Context(), object(t, "machines", "stored", "spec: {host: {image: img a, provisioningFormat: CloudInit}}"), metav1.CreateOptions{})
	require.NoError(t, err)
	const prefix = "machines.validate.hostformat.unbounded-cloud.io/"
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		log, err := os.ReadFile(path)
		assert.NoError(collect, err)
		for name, annotations := range map[string][]string{
			"refused": {prefix + `rules":"imageValue"`, prefix + `outcome":"denied"`},
			"stored":  {prefix + `image-source":"machine"`, prefix + `format-source":"machine"`},
		} {
			found := false
			for line := range strings.Lines(string(log)) {
				found = found || (strings.Contains(line, `"name":"`+name+`"`) && strings.Contains(line, annotations[0]) && strings.Contains(line, annotations[1]))
			}
			assert.True(collect, found, name)
		}
	}, patience, interval)
}
