package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// One version after the other is cut, as deployments make it necessary.
func TestConfigurationController(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	startControllers(t, foreign, foreign.Kubeconfig, "machineconfiguration")
	name := uniqueName()
	template := func(image string) string {
		return `{"spec":{"template":{"host":{"image":"` + image + `","provisioningFormat":"CloudInit","futureKnob":{"a":[{}]}},"serial":9007199254740993}}}`
	}
	versionIs := func(number int, image string) {
		t.Helper()
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			version, err := c.of("machineconfigurationversions").Get(t.Context(), fmt.Sprintf("%s-v%d", name, number), metav1.GetOptions{})
			if !assert.NoError(collect, err) {
				return
			}
			assert.Equal(collect, map[string]any{"version": int64(number), "template": map[string]any{"serial": int64(9007199254740993),
				"host": map[string]any{"image": image, "provisioningFormat": "CloudInit", "futureKnob": map[string]any{"a": []any{map[string]any{}}}}}}, version.Object["spec"])
			assert.Equal(collect, map[string]string{v1alpha3.ConfigurationLabel: name, v1alpha3.ConfigurationVersionLabel: fmt.Sprint(number)}, version.GetLabels())
			latest, _, _ := unstructured.NestedInt64(get(collect, c, "machineconfigurations", name).Object, "status", "latestVersion")
			assert.Equal(collect, int64(number), latest)
		}, patience, interval)
	}
	edit := func(image string) {
		t.Helper()
		_, err := c.of("machineconfigurations").Patch(t.Context(), name, types.MergePatchType, []byte(template(image)), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	deploy := func(number int) {
		t.Helper()
		_, err := c.of("machineconfigurationversions").Patch(t.Context(), fmt.Sprintf("%s-v%d", name, number), types.MergePatchType, []byte(`{"status":{"deployed":true}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	count := func() int {
		list, err := c.of("machineconfigurationversions").List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha3.ConfigurationLabel + "=" + name})
		require.NoError(t, err)
		return len(list.Items)
	}
	_, err := c.of("machineconfigurations").Create(t.Context(), object(t, "machineconfigurations", name, template("img-1")), metav1.CreateOptions{})
	require.NoError(t, err)
	versionIs(1, "img-1")
	edit("img-2")
	versionIs(1, "img-2")
	require.Equal(t, 1, count(), "what is not deployed is updated in place")
	deploy(1)
	edit("img-3")
	versionIs(2, "img-3")
	deploy(2)
	edit("img-4")
	versionIs(3, "img-4")
	// A number that was given out is not given out again.
	require.NoError(t, c.of("machineconfigurationversions").Delete(t.Context(), name+"-v3", metav1.DeleteOptions{}))
	versionIs(4, "img-4")
	require.Equal(t, 3, count())

	t.Run("the last number there can be", func(t *testing.T) {
		last := uniqueName()
		v := object(t, "machineconfigurationversions", last+"-v2147483647", "{spec: {version: 2147483647, template: {host: {image: img-t}}}, status: {deployed: true}}")
		v.SetLabels(map[string]string{v1alpha3.ConfigurationLabel: last})
		store(t, c, "machineconfigurationversions", v)
		store(t, c, "machineconfigurations", object(t, "machineconfigurations", last, template("img-u")))
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			out, err := foreign.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector=involvedObject.name="+last)
			assert.NoError(collect, err)
			assert.Contains(collect, out, "version 2147483647 has the highest possible number")
		}, patience, interval)
		list, err := c.of("machineconfigurationversions").List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha3.ConfigurationLabel + "=" + last})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
	})
	t.Run("a template that is refused uses up no numbers", func(t *testing.T) {
		require.NoError(t, foreign.RemoveWebhook(t.Context()))
		bad := uniqueName()
		store(t, c, "machineconfigurations", object(t, "machineconfigurations", bad, `spec: {template: {host: {image: "img\u200b"}}}`))
		require.NoError(t, foreign.InstallWebhook(t.Context()))
		_, err := c.of("machineconfigurations").Patch(t.Context(), bad, types.MergePatchType, []byte(`{"spec":{"priority":1}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		list, err := c.of("machineconfigurationversions").List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha3.ConfigurationLabel + "=" + bad})
		require.NoError(t, err)
		for _, version := range list.Items { // cut while there was no webhook
			require.NoError(t, c.of("machineconfigurationversions").Delete(t.Context(), version.GetName(), metav1.DeleteOptions{}))
		}
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			out, err := foreign.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector=involvedObject.name="+bad)
			assert.NoError(collect, err)
			assert.Contains(collect, out, "the API server refuses MachineConfigurationVersion")
		}, patience, interval)
		latest, _, _ := unstructured.NestedInt64(get(t, c, "machineconfigurations", bad).Object, "status", "latestVersion")
		require.LessOrEqual(t, latest, int64(1))
	})
	t.Run("an image that was stored untrimmed converges", func(t *testing.T) {
		require.NoError(t, foreign.RemoveWebhook(t.Context()))
		untrimmed := uniqueName()
		store(t, c, "machineconfigurations", object(t, "machineconfigurations", untrimmed, `spec: {template: {host: {image: " img-t "}}}`))
		require.NoError(t, foreign.InstallWebhook(t.Context()))
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			version, err := c.of("machineconfigurationversions").Get(t.Context(), untrimmed+"-v1", metav1.GetOptions{})
			if assert.NoError(collect, err) {
				image, _, _ := unstructured.NestedString(version.Object, "spec", "template", "host", "image")
				assert.Equal(collect, "img-t", image)
			}
		}, patience, interval)
		// Another configuration is served after it: by then this one is at rest.
		was := get(t, c, "machineconfigurationversions", untrimmed+"-v1")
		edit("img-5")
		versionIs(4, "img-5")
		require.Equal(t, was, get(t, c, "machineconfigurationversions", untrimmed+"-v1"))
	})
}

// blockedBy returns what the condition VersionCurrent of a configuration says is in the
// way of a version.
func blockedBy(configuration *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(configuration.Object, "status", "conditions")
	for _, item := range conditions {
		if condition := item.(map[string]any); condition["type"] == v1alpha3.ConditionVersionCurrent && condition["status"] == "False" {
			return fmt.Sprintf("%s: %s", condition["reason"], condition["message"])
		}
	}
	return ""
}

// With both controllers in one process, a version is deployed before its pair
// is frozen: no edit can come in between.
func TestVersionIsDeployedFirst(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "*,machineconfiguration")
	name := uniqueName()
	store(t, c, "machineconfigurations", object(t, "machineconfigurations", name, "spec: {template: {host: {image: img-t, provisioningFormat: CloudInit}}}"))
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, err := c.of("machineconfigurationversions").Get(t.Context(), name+"-v1", metav1.GetOptions{})
		assert.NoError(collect, err)
	}, patience, interval)
	store(t, c, "machines", object(t, "machines", name, "spec: {"+host("")+", configurationRef: {name: "+name+"}}"))
	done := finished(t, c, newOperation(t, c, name))
	require.Equal(t, "Complete", phase(done), message(done))
	require.Equal(t, "img-t", inputOf(t, done)["hostImage"])
	require.Equal(t, map[string]any{"deployed": true}, get(t, c, "machineconfigurationversions", name+"-v1").Object["status"])
}
