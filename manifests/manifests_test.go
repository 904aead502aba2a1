// Package manifests has no code. Its tests check the safety of the hand-written webhook
// configurations.
package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/internal/admission"
)

func TestWebhookConfigurations(t *testing.T) {
	text, err := os.ReadFile("base/webhook.yaml")
	require.NoError(t, err)
	require.NotContains(t, string(text), "caBundle:", "cert-manager injects it")
	documents := strings.Split(string(text), "\n---\n")
	require.Len(t, documents, 2)
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[0]), &mutating))
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[1]), &validating))

	const create, update = admissionregistrationv1.Create, admissionregistrationv1.Update
	both := []admissionregistrationv1.OperationType{create, update}
	wantMutating := map[string][]admissionregistrationv1.OperationType{
		"machines": both, "machineconfigurations": both, "machineconfigurationversions": both, "machineoperations/status": {update},
	}
	wantValidating := map[string][]admissionregistrationv1.OperationType{
		"machines": both, "machineconfigurations": both, "machineconfigurationversions": both, "machineoperations": both, "machineoperations/status": {update},
	}
	gotMutating, gotValidating := map[string][]admissionregistrationv1.OperationType{}, map[string][]admissionregistrationv1.OperationType{}

	// Check the common fields of both kinds of entries as those of a validating one.
	check := func(w admissionregistrationv1.ValidatingWebhook, path, verb string, got map[string][]admissionregistrationv1.OperationType) {
		require.Len(t, w.Rules, 1, w.Name)
		rule := w.Rules[0]
		require.Len(t, rule.Resources, 1, w.Name)
		resource := rule.Resources[0]
		require.Equal(t, strings.ReplaceAll(resource, "/", "-")+"."+verb+".hostformat.unbounded-cloud.io", w.Name)
		require.NotContains(t, got, resource, "an entry fires once")
		got[resource] = rule.Operations
		require.Equal(t, []string{"unbounded-cloud.io"}, rule.APIGroups)
		require.Equal(t, []string{"v1alpha3"}, rule.APIVersions)
		require.Equal(t, ptr.To(admissionregistrationv1.ClusterScope), rule.Scope)

		require.Equal(t, ptr.To(admissionregistrationv1.Fail), w.FailurePolicy)
		require.Equal(t, ptr.To(admissionregistrationv1.Equivalent), w.MatchPolicy)
		require.Equal(t, ptr.To(admissionregistrationv1.SideEffectClassNone), w.SideEffects)
		require.Equal(t, []string{"v1"}, w.AdmissionReviewVersions)
		require.NotNil(t, w.TimeoutSeconds)
		require.True(t, *w.TimeoutSeconds >= 5 && *w.TimeoutSeconds <= 10)
		require.Equal(t, &metav1.LabelSelector{}, w.NamespaceSelector, "it exempts nothing that is cluster-scoped")
		require.Equal(t, &metav1.LabelSelector{}, w.ObjectSelector)
		require.Equal(t, &admissionregistrationv1.ServiceReference{Namespace: certs.Namespace, Name: certs.Service, Path: &path, Port: ptr.To[int32](443)}, w.ClientConfig.Service)
	}
	for _, w := range mutating.Webhooks {
		require.Equal(t, ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy), w.ReinvocationPolicy)
		check(admissionregistrationv1.ValidatingWebhook{Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
			NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects, TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions},
			admission.MutatePath, "mutate", gotMutating)
	}
	for _, w := range validating.Webhooks {
		check(w, admission.ValidatePath, "validate", gotValidating)
	}
	require.Equal(t, wantMutating, gotMutating)
	require.Equal(t, wantValidating, gotValidating)
}

// Deleting a CRD deletes every object of its kind: no overlay that installs or removes
// the webhook contains one.
func TestCRDsStandApart(t *testing.T) {
	files, err := filepath.Glob("*/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasPrefix(file, "crds/") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(text), "CustomResourceDefinition", file)
	}
	files, err = filepath.Glob("crds/unbounded-cloud.io_*.yaml")
	require.NoError(t, err)
	short := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var crd apiextensionsv1.CustomResourceDefinition
		require.NoError(t, yaml.UnmarshalStrict(text, &crd))
		short[crd.Spec.Names.Kind] = crd.Spec.Names.ShortNames
		require.Equal(t, apiextensionsv1.ClusterScoped, crd.Spec.Scope)
		require.NotNil(t, crd.Spec.Versions[0].Subresources.Status)
	}
	require.Equal(t, map[string][]string{"Machine": {"mach"}, "MachineConfiguration": {"mc"}, "MachineConfigurationVersion": {"mcv"}, "MachineOperation": {"mop"}}, short)
}
