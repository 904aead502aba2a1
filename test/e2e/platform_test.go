package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"unbounded-cloud.io/hostformat/certs"
)

const dirtyMachine = `{"apiVersion":"unbounded-cloud.io/v1alpha3","kind":"Machine","metadata":{"name":"NAME"},"spec":{"host":{"image":"acme/os/plain-24:v3 ","provisioningFormat":"CloudInit"}}}`

// A manifest that keeps its whitespace can be applied forever without a new
// generation, and the platform's rules of ownership stay what they are.
func TestTrimmedManifestConverges(t *testing.T) {
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	name := uniqueName()
	dirty := []byte(strings.Replace(dirtyMachine, "NAME", name, 1))
	clean := []byte(strings.Replace(string(dirty), `v3 "`, `v3"`, 1))
	apply := func(manager string, manifest []byte) (string, error) {
		return ours.Kubectl(t.Context(), manifest, "apply", "--server-side", "--field-manager="+manager, "-f", "-")
	}
	out, err := apply("git-a", dirty)
	require.NoError(t, err, out)
	require.Equal(t, 1, strings.Count(out, "Warning: spec.host.image: surrounding whitespace was removed; correct the manifest"))
	first := get(t, c, "machines", name)

	out, err = apply("git-a", dirty)
	require.NoError(t, err, out)
	again := get(t, c, "machines", name)
	require.Equal(t, first.GetGeneration(), again.GetGeneration())
	require.Equal(t, first.GetResourceVersion(), again.GetResourceVersion())

	out, err = apply("git-b", dirty)
	require.Error(t, err, "another owner's untrimmed value is a conflict: that is the platform's rule")
	require.Contains(t, out, "conflict")
	out, err = apply("git-b", clean)
	require.NoError(t, err, out)

	name = uniqueName()
	dirty = []byte(strings.Replace(dirtyMachine, "NAME", name, 1))
	for range 2 {
		out, err = ours.Kubectl(t.Context(), dirty, "apply", "-f", "-")
		require.NoError(t, err, out)
		require.Equal(t, int64(1), get(t, c, "machines", name).GetGeneration())
	}
}

func TestDryRunAndDiff(t *testing.T) {
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	name := uniqueName()
	dirty := []byte(strings.Replace(dirtyMachine, "NAME", name, 1))
	out, err := ours.Kubectl(t.Context(), dirty, "apply", "--dry-run=server", "-o", "jsonpath={.spec.host.image}", "-f", "-")
	require.NoError(t, err, out)
	require.Contains(t, out, "acme/os/plain-24:v3")
	require.NotContains(t, out, "v3 ")
	out, err = ours.Kubectl(t.Context(), dirty, "diff", "-f", "-")
	require.Error(t, err, "a difference is status 1")
	require.Contains(t, out, "+    image: acme/os/plain-24:v3\n")
	_, err = c.of("machines").Get(t.Context(), name, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))

	bad := []byte(strings.Replace(string(dirty), `"CloudInit"`, `"cloud-init"`, 1))
	out, err = ours.Kubectl(t.Context(), bad, "diff", "-f", "-")
	require.Error(t, err)
	require.Contains(t, out, `The Machine "`+name+`" is invalid: spec.host.provisioningFormat: Unsupported value: "cloud-init"`)
}

// Optional parents that are missing, and values of the wrong shape, never end
// in an internal error.
func TestShapes(t *testing.T) {
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	for resource, texts := range map[string][]string{
		"machines":              {"{}", "spec: {}", "spec: {host: {}}"},
		"machineconfigurations": {"{}", "spec: {template: {}}", "spec: {template: {host: {}}}"},
	} {
		for _, text := range texts {
			u := object(t, resource, uniqueName(), text)
			stored, err := c.of(resource).Create(t.Context(), u, metav1.CreateOptions{})
			require.NoError(t, err)
			require.Equal(t, u.Object["spec"], stored.Object["spec"])
			require.Empty(t, c.take())
		}
	}
	for text, words := range map[string]string{
		"spec: {host: oops}":          "spec.host in body must be of type object",
		"spec: {host: {image: 7}}":    "spec.host.image in body must be of type string",
		"spec: {host: {image: null}}": "", "spec: {host: null}": "", "spec: null": "",
		"spec: {host: {provisioningFormat: null}}": "", `spec: {host: {provisioningFormat: ""}}`: `Unsupported value: ""`,
		"spec: {host: {provisioningFormat: 5}}": "spec.host.provisioningFormat",
	} {
		_, err := c.of("machines").Create(t.Context(), object(t, "machines", uniqueName(), text), metav1.CreateOptions{})
		if words == "" {
			require.False(t, apierrors.IsInternalError(err), "%s: %v", text, err)
		} else {
			require.True(t, apierrors.IsInvalid(err), "%s: %v", text, err)
			require.ErrorContains(t, err, words)
		}
	}
}

// Denials read as those of built-in kinds do.
func TestDenialsLookBuiltIn(t *testing.T) {
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	name := uniqueName()
	store(t, c, "machines", object(t, "machines", name, "{spec: {}, "+ignition+"}"))
	out, err := ours.Kubectl(t.Context(), nil, "patch", "machine", name, "--type=merge", "-p", `{"spec":{"host":{"image":"img-a"}}}`)
	require.Error(t, err)
	require.Equal(t, `The Machine "`+name+`" is invalid: spec.host.provisioningFormat: Required value: must be declared because this host is known to run Ignition (status.observedProvisioningFormat) and spec.host.image selects "img-a"; set it to CloudInit or Ignition, whichever that image boots with`, out)

	out, err = ours.Kubectl(t.Context(), []byte(`{apiVersion: unbounded-cloud.io/v1alpha3, kind: MachineOperation, metadata: {generateName: swap-}, spec: {operationKind: HostReplace, machineSelector: {}}}`), "create", "-f", "-")
	require.Error(t, err)
	require.Contains(t, out, `The MachineOperation "swap-`)
	require.Contains(t, out, `" is invalid: spec.machineSelector: Required value: must select by at least one label`)
	out, err = ours.Kubectl(t.Context(), []byte(`{apiVersion: unbounded-cloud.io/v1alpha3, kind: MachineOperation, metadata: {generateName: swap-}, spec: {operationKind: HostReplace, machineRef: a}}`), "create", "-f", "-")
	require.NoError(t, err, out)
}

// The observation that counts is the stored one, whatever a client types, and
// a status typed at the main endpoint changes nothing.
func TestTypedStatus(t *testing.T) {
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	name := uniqueName()
	created, err := c.of("machines").Create(t.Context(), object(t, "machines", name, "{spec: {host: {image: img-a}}, "+ignition+"}"), metav1.CreateOptions{})
	require.NoError(t, err, "that status will not be stored")
	require.NotContains(t, created.Object, "status")

	store(t, c, "machines", object(t, "machines", name+"-b", "{spec: {}, "+ignition+"}"))
	for _, status := range []string{"{}", "status: {observedProvisioningFormat: CloudInit}"} {
		replacement := get(t, c, "machines", name+"-b")
		delete(replacement.Object, "status")
		if typed, ok := object(t, "machines", name, status).Object["status"]; ok {
			replacement.Object["status"] = typed
		}
		replacement.Object["spec"] = map[string]any{"host": map[string]any{"image": "img-a"}}
		_, err = c.of("machines").Update(t.Context(), replacement, metav1.UpdateOptions{})
		require.ErrorContains(t, err, "spec.host.provisioningFormat: Required value")
	}

	store(t, c, "machineoperations", object(t, "machineoperations", name, "{"+replace1+", "+pair+"}"))
	was := get(t, c, "machineoperations", name)
	replacement := was.DeepCopy()
	replacement.Object["status"] = map[string]any{"targets": []any{}}
	replacement.SetLabels(map[string]string{"a": "b"})
	_, err = c.of("machineoperations").Update(t.Context(), replacement, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, was.Object["status"], get(t, c, "machineoperations", name).Object["status"])
}

// Another mutator that dirties the image after ours, or the same configuration
// installed twice: the stored object is clean, and one warning is enough.
func TestOtherMutators(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	clientset, err := kubernetes.NewForConfig(ours.Config)
	require.NoError(t, err)
	configurations := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations()
	c := newClient(t, ours)
	written := func(image string) *unstructured.Unstructured {
		return object(t, "machines", uniqueName(), `spec: {host: {image: "`+image+`"}}`)
	}
	imageOf := func(machine *unstructured.Unstructured) (string, error) {
		stored, err := c.of("machines").Create(context.Background(), machine, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return "", err
		}
		return stored.Object["spec"].(map[string]any)["host"].(map[string]any)["image"].(string), nil
	}
	unclean := written(" img-a ")
	image := func() (string, error) { return imageOf(unclean) }
	install := func(t *testing.T, configuration *admissionregistrationv1.MutatingWebhookConfiguration) {
		_, err := configurations.Create(t.Context(), configuration, metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, configurations.Delete(context.Background(), configuration.Name, metav1.DeleteOptions{}))
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				got, err := image()
				assert.NoError(collect, err)
				assert.Equal(collect, "img-a", got)
			}, patience, interval)
		})
	}

	t.Run("a registry mirror", func(t *testing.T) {
		mirror := serveMutator(t, `[{"op":"replace","path":"/spec/host/image","value":"mirror.example.com/acme/os/plain-24:v3\n"}]`)
		configuration, _, err := ours.WebhookConfigurations()
		require.NoError(t, err)
		configuration = &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "zz-mirror"},
			Webhooks:   configuration.Webhooks[:1],
		}
		configuration.Webhooks[0].ClientConfig = mirror
		configuration.Webhooks[0].MatchConditions = nil
		configuration.Webhooks[0].ReinvocationPolicy = ptr.To(admissionregistrationv1.NeverReinvocationPolicy)
		install(t, configuration)
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			got, err := image()
			assert.NoError(collect, err)
			assert.Equal(collect, "mirror.example.com/acme/os/plain-24:v3", got)
		}, patience, interval)

		// What the API server did not ask about at first, it does not ask about
		// again: a clean image that is made unclean later is stored so.
		left := "mirror.example.com/acme/os/plain-24:v3\n"
		if everyWrite {
			left = "mirror.example.com/acme/os/plain-24:v3"
		}
		got, err := imageOf(written("img-a"))
		require.NoError(t, err)
		require.Equal(t, left, got)
	})

	t.Run("installed twice", func(t *testing.T) {
		second, _, err := ours.WebhookConfigurations()
		require.NoError(t, err)
		second.ObjectMeta = metav1.ObjectMeta{Name: "hostformat-second"}
		install(t, second)
		c.take()
		got, err := image()
		require.NoError(t, err)
		require.Equal(t, "img-a", got)
		require.Len(t, c.take(), 1)
	})

	// All kinds are cluster-scoped, so that a namespaceSelector exempts nothing.
	t.Run("a namespaceSelector is no safety valve", func(t *testing.T) {
		mirror := serveMutator(t, `[{"op":"replace","path":"/spec/host/image","value":"selected"}]`)
		configuration, _, err := ours.WebhookConfigurations()
		require.NoError(t, err)
		configuration.ObjectMeta = metav1.ObjectMeta{Name: "zz-selected"}
		configuration.Webhooks = configuration.Webhooks[:1]
		configuration.Webhooks[0].ClientConfig = mirror
		configuration.Webhooks[0].MatchConditions = nil
		configuration.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "such"}}
		install(t, configuration)
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			got, err := image()
			assert.NoError(collect, err)
			assert.Equal(collect, "selected", got)
		}, patience, interval)
	})
}

// serveMutator serves a webhook that always answers with one patch.
func serveMutator(t *testing.T, patch string) admissionregistrationv1.WebhookClientConfig {
	ca, err := certs.NewCA()
	require.NoError(t, err)
	certPEM, keyPEM, err := ca.Issue(time.Hour, "127.0.0.1")
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if json.NewDecoder(r.Body).Decode(&review) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: []byte(patch), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: ca.PEM}
}

// Applying our configurations again changes nothing, so that GitOps tools see
// no drift.
func TestConfigurationsDoNotDrift(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	clientset, err := kubernetes.NewForConfig(ours.Config)
	require.NoError(t, err)
	generation := func() [2]string {
		mutating, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "hostformat", metav1.GetOptions{})
		require.NoError(t, err)
		validating, err := clientset.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "hostformat", metav1.GetOptions{})
		require.NoError(t, err)
		return [2]string{mutating.ResourceVersion, validating.ResourceVersion}
	}
	before := generation()
	require.NoError(t, ours.InstallWebhook(t.Context()))
	require.Equal(t, before, generation())
}
