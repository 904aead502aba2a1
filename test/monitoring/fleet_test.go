package monitoring

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// fleet is what people and controllers write, round by round.
type fleet struct {
	t      *testing.T
	client dynamic.Interface
	rounds int
}

func newFleet(t *testing.T, config *rest.Config) *fleet {
	t.Helper()
	quiet := rest.CopyConfig(config)
	quiet.WarningHandler, quiet.QPS = rest.NoWarnings{}, -1
	client, err := dynamic.NewForConfig(quiet)
	require.NoError(t, err)
	f := &fleet{t: t, client: client}

	// A Machine that is known to run Ignition, a version that operations take
	// their image from, and an operation that another controller has begun.
	f.store("machines", "ignition", "{spec: {host: {}}, status: {observedProvisioningFormat: Ignition}}")
	f.store("machineconfigurationversions", "edge-v1", "{metadata: {labels: {unbounded-cloud.io/machine-configuration: edge}}, spec: {version: 1, template: {host: {image: img-t, provisioningFormat: CloudInit}}}}")
	f.store("machines", "other", "spec: {host: {image: img-a, external: {provider: Other, providerID: chassis-0}}}")
	f.store("machineoperations", "other", "{spec: {operationKind: HostReplace, machineRef: other}, status: {phase: InProgress, targets: [{machineRef: other, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}}")
	return f
}

func (f *fleet) create(resource, name, text string) error {
	kinds := map[string]string{"machines": "Machine", "machineconfigurations": "MachineConfiguration", "machineconfigurationversions": "MachineConfigurationVersion", "machineoperations": "MachineOperation"}
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		return err
	}
	u.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind(kinds[resource]))
	u.SetName(name)
	_, err := f.client.Resource(v1alpha3.GroupVersion.WithResource(resource)).Create(f.t.Context(), u, metav1.CreateOptions{})
	return err
}

func (f *fleet) patch(resource, name string, kind types.PatchType, text string, subresources ...string) error {
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return err
	}
	_, err = f.client.Resource(v1alpha3.GroupVersion.WithResource(resource)).Patch(f.t.Context(), name, kind, raw, metav1.PatchOptions{}, subresources...)
	return err
}

// store creates an object and then writes its status, if it has one.
func (f *fleet) store(resource, name, text string) {
	f.t.Helper()
	require.NoError(f.t, f.create(resource, name, text))
	var object struct{ Status map[string]any }
	require.NoError(f.t, yaml.Unmarshal([]byte(text), &object))
	if object.Status != nil {
		status, err := yaml.Marshal(map[string]any{"status": object.Status})
		require.NoError(f.t, err)
		require.NoError(f.t, f.patch(resource, name, types.MergePatchType, string(status), "status"))
	}
}

func (f *fleet) name() string {
	f.rounds++
	return fmt.Sprintf("machine-%d", f.rounds)
}

// warned is a round of writes that are let through though they break rules.
func (f *fleet) warned(c *assert.CollectT) {
	name := f.name()
	assert.NoError(c, f.create("machines", name, `spec: {host: {image: "img\u200b-a"}}`))
	assert.NoError(c, f.patch("machines", "ignition", types.MergePatchType, "spec: {host: {image: "+name+"}}"))
	for i := range 3 {
		assert.NoError(c, f.patch("machines", name, types.MergePatchType, fmt.Sprintf("metadata: {labels: {rack: '%d'}}", i)))
	}
}

// enforced is a round of writes that are judged: good ones, mistakes, and
// operations.
func (f *fleet) enforced(c *assert.CollectT) {
	name := f.name()
	n := f.rounds
	good := func(err error) { assert.NoError(c, err) }
	bad := func(err error) { assert.True(c, apierrors.IsInvalid(err), "%v", err) }

	good(f.create("machines", name, "spec: {host: {image: '  img-a ', provisioningFormat: CloudInit}}"))
	for i := range 2 + n%4 {
		good(f.patch("machines", name, types.MergePatchType, fmt.Sprintf("metadata: {labels: {rack: '%d'}}", i)))
	}
	if n%2 == 0 {
		good(f.create("machineconfigurations", name, `spec: {template: {host: {image: "img-t\n", provisioningFormat: CloudInit}}}`))
	}
	bad(f.create("machines", name+"-bad", `spec: {host: {image: "img\u200b-a"}}`))
	if n%3 == 0 {
		bad(f.create("machineoperations", name+"-bad", "spec: {operationKind: HostReplace, machineSelector: {}}"))
	}
	if n%2 == 1 {
		bad(f.patch("machines", "ignition", types.MergePatchType, "spec: {host: {image: "+name+"}}"))
	}
	if n%4 == 0 {
		bad(f.patch("machineoperations", "other", types.MergePatchType, "spec: {machineRef: ignition}"))
	}
	if n%6 == 0 {
		bad(f.patch("machineoperations", "other", types.JSONPatchType, "[{op: remove, path: /status/targets}]", "status"))
	}
	if n%3 == 1 {
		f.replace(c, name+"-host", n/3)
	}
}

// replace has the controller replace a host whose pair comes from here or from
// there, one that it must not replace, and one whose snapshot is from before
// the format field.
func (f *fleet) replace(c *assert.CollectT, name string, which int) {
	specs := []string{
		"host: {image: img-a, provisioningFormat: CloudInit, %s}",
		"host: {image: img-a, %s}",
		"host: {%s}, configurationRef: {name: edge}",
		"host: {image: img-a, provisioningFormat: Ignition, %s}",
		"host: {%s}",
	}
	which %= len(specs)
	legacy := which == 1
	external := "external: {provider: %s, providerID: " + name + "}"
	provider := "Simulated"
	if legacy {
		provider = "Other" // until its snapshot is there, as another controller would write it
	}
	assert.NoError(c, f.create("machines", name, "spec: {"+fmt.Sprintf(specs[which], fmt.Sprintf(external, provider))+"}"))
	assert.NoError(c, f.create("machineoperations", name, "spec: {operationKind: HostReplace, machineRef: "+name+"}"))
	if legacy {
		assert.NoError(c, f.patch("machineoperations", name, types.MergePatchType, "status: {targets: [{machineRef: "+name+", input: {hostImage: img-old}}]}", "status"))
		assert.NoError(c, f.patch("machines", name, types.MergePatchType, "spec: {host: {"+fmt.Sprintf(external, "Simulated")+"}}"))
		assert.NoError(c, f.patch("machineoperations", name, types.MergePatchType, "metadata: {labels: {handed-over: 'true'}}"))
	}
}
