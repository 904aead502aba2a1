package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Fields of another project, in each of the shapes that a careless patch
// damages: nested, in lists, empty, big, and timestamps that Go refuses.
const (
	machineOfOthers = `
  host:
    image: %s
    provisioningFormat: CloudInit
    futureKnob: {depth: 2, hints: ["", " b "]}
    netboot: {image: " keep me ", profiles: [{name: p1, hints: [a], weight: 1.5}, {name: "", weight: 100}, {}]}
    azure: {resourceID: /x}
  ssh: {host: "192.0.2.10:22", privateKeyRef: {name: k, namespace: ops}}
  kubernetes: {version: v1, nodeLabels: {a/b: "~"}, registerWithTaints: [], bootstrapTokenRef: {name: t}}
  agent: {image: " x "}
  inventory: {serial: 9007199254740993, bytes: 9223372036854775500, ratio: 0.1, purchasedAt: "2024-02-30T25:61:00.123456789+99:00"}
  anything: {list: [{k: {}}, [1, 2.5]], exp: 1e3, nothing: {}}
  intOrString: 8080
  empty: ""
  off: false
  zero: 0
`
	operationOfOthers = `
  phase: InProgress
  startedAt: yesterday
  targets:
    - {machineRef: worker-0, serial: 9223372036854775807, futureKnobs: [{a: {}}, {b: [1]}]}
    - machineRef: worker-1
      startedAt: not a time
      serial: 9007199254740993
      input: {hostImage: %s, provisioningFormat: CloudInit, futureKnob: {deep: {er: [{}]}}}
      futureKnobs: [{}]
`
)

func TestFieldsOfOthersSurvive(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	for name, r := range map[string]row{
		"created": {resource: "machines", want: "spec:" + fill(machineOfOthers, `" img-a "`), after: "spec:" + fill(machineOfOthers, "img-a"), warn: trimmed},
		"updated": {resource: "machines", stored: "spec:" + fill(machineOfOthers, "img-a"), want: "spec:" + fill(machineOfOthers, `"img-b\n"`), after: "spec:" + fill(machineOfOthers, "img-b"), warn: trimmed},
		"status":  {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {}}", want: replace1 + "\nstatus:" + fill(operationOfOthers, `" img-a"`), after: "status:" + fill(operationOfOthers, "img-a"), warn: trimmed},
		"a template": {resource: "machineconfigurations", want: `spec: {template: {serial: 9007199254740993, host: {image: " img-t", futureKnob: {a: [{}]}}, kubernetes: {registerWithTaints: [{key: k, timeAdded: "?"}]}}}`,
			after: `spec: {template: {serial: 9007199254740993, host: {image: img-t, futureKnob: {a: [{}]}}, kubernetes: {registerWithTaints: [{key: k, timeAdded: "?"}]}}}`, warn: trimmed},
		"a deployed version": {resource: "machineconfigurationversions", stored: "{spec: {version: 1, template: {serial: 9007199254740993, host: {image: img-t}}}, status: {deployed: true}}",
			want: "{spec: {version: 1, template: {serial: 7, host: {image: img-t}}}, status: {deployed: true}}", denied: "spec: Forbidden: may not change because this version is deployed"},
	} {
		for _, m := range methods {
			if (r.stored == "" && !m.creates) || (r.stored != "" && !m.updates) || (m.noStatus && r.resource == "machineoperations/status") {
				continue
			}
			t.Run(name+"/"+m.name, func(t *testing.T) {
				t.Parallel()
				if name == "status" && m.name == "kubectl edit" {
					t.Skip("kubectl edit reads integers as floating point, and so cannot write these")
				}
				runRow(t, foreign, r, m)
			})
		}
	}
}

func fill(text, image string) string { return strings.Replace(text, "%s", image, 1) }

// What was stored wrong before the webhook existed can be labelled, lose its
// finalizers and be deleted, in silence, and its generation stays.
func TestStoredBeforeTheWebhook(t *testing.T) {
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	before := map[string]string{ // resource and what is wrong
		"machines":                     `{spec: {host: {image: " img-a ", provisioningFormat: cloudinit}, inventory: {purchasedAt: "25:61"}}, status: {observedProvisioningFormat: Ignition, installedAt: someday, conditions: [{type: a, lastTransitionTime: never}]}}`,
		"machineconfigurations":        `spec: {template: {host: {image: "a\u200bb", provisioningFormat: IGNITION}}}`,
		"machineconfigurationversions": `{spec: {version: 0, template: {host: {image: " ", provisioningFormat: weird}}}, status: {deployed: true}}`,
		"machineoperations":            "{spec: {operationKind: HostReplace, machineSelector: {}}, status: {startedAt: never, targets: [{machineRef: a, input: {hostImage: ' img-a', provisioningFormat: weird}}, {machineRef: a}]}}",
	}
	require.NoError(t, foreign.RemoveWebhook(t.Context()))
	stored := map[string]string{}
	for resource, text := range before {
		u := object(t, resource, uniqueName(), text)
		u.SetFinalizers([]string{"example.com/keep"})
		store(t, c, resource, u)
		stored[resource] = u.GetName()
	}
	undeclared := object(t, "machines", uniqueName(), "{spec: {host: {image: img-a}}, "+ignition+"}")
	store(t, c, "machines", undeclared)
	require.NoError(t, foreign.InstallWebhook(t.Context()))

	for resource, name := range stored {
		t.Run(resource, func(t *testing.T) {
			was := get(t, c, resource, name)
			out, err := foreign.Kubectl(t.Context(), nil, "label", resource, name, "a=b")
			require.NoError(t, err, out)
			require.NotContains(t, out, "Warning")
			out, err = foreign.Kubectl(t.Context(), nil, "annotate", resource, name, "a=b")
			require.NoError(t, err, out)
			now := get(t, c, resource, name)
			require.Equal(t, was.Object["spec"], now.Object["spec"])
			require.Equal(t, was.Object["status"], now.Object["status"])
			require.Equal(t, was.GetGeneration(), now.GetGeneration())

			require.NoError(t, c.of(resource).Delete(t.Context(), name, metav1.DeleteOptions{}))
			deleting := get(t, c, resource, name)
			require.NotNil(t, deleting.GetDeletionTimestamp())
			_, err = c.of(resource).Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			_, err = c.of(resource).Get(t.Context(), name, metav1.GetOptions{})
			require.True(t, apierrors.IsNotFound(err))
			require.Empty(t, c.take())
		})
	}

	t.Run("an edit elsewhere warns of the old fault", func(t *testing.T) {
		c.take()
		_, err := c.of("machines").Patch(t.Context(), undeclared.GetName(), types.MergePatchType, []byte(`{"spec":{"kubernetes":{"version":"v2"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		warned := c.take()
		require.Len(t, warned, 1)
		require.Contains(t, warned[0], "spec.host.provisioningFormat: stored before and still wrong")
		require.NoError(t, c.of("machines").Delete(t.Context(), undeclared.GetName(), metav1.DeleteOptions{}))
	})
}

// A client from before the format field that rewrites a whole status is denied
// and told to be upgraded.
func TestWholeStatusRewriteByAnOldClient(t *testing.T) {
	for name, cluster := range clusters(t) {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, cluster)
			u := object(t, "machineoperations", uniqueName(), "{"+replace1+", "+pair+"}")
			was := store(t, c, "machineoperations", u)
			rewrite := was.DeepCopy()
			rewrite.Object["status"] = object(t, "machineoperations", "x", "status: {phase: Complete, targets: [{machineRef: worker-1, phase: Complete, input: {hostImage: img-a}}]}").Object["status"]
			_, err := c.of("machineoperations").UpdateStatus(t.Context(), rewrite, metav1.UpdateOptions{})
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, "older than the field: upgrade it")
			require.Equal(t, was, get(t, c, "machineoperations", u.GetName()))
		})
	}
}

// A target twice is one target too many, where the CRD does not say so itself.
func TestDuplicateTarget(t *testing.T) {
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	u := object(t, "machineoperations", uniqueName(), replace1)
	store(t, c, "machineoperations", u)
	_, err := c.of("machineoperations").Patch(t.Context(), u.GetName(), types.MergePatchType,
		[]byte(`{"status":{"targets":[{"machineRef":"worker-1"},{"machineRef":"worker-1"}]}}`), metav1.PatchOptions{}, "status")
	require.ErrorContains(t, err, `status.targets[1].machineRef: Duplicate value: "worker-1": may be the target of one entry only`)
}

// A second version of the API is guarded through matchPolicy: Equivalent.
func TestAnotherVersionOfTheAPI(t *testing.T) {
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign)
	crds := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, resource := range []string{"machines", "machineoperations"} {
		name := resource + ".unbounded-cloud.io"
		crd, err := crds.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		require.NoError(t, err)
		second := runtime.DeepCopyJSON(versions[0].(map[string]any))
		second["name"], second["storage"] = "v1beta1", false
		require.NoError(t, unstructured.SetNestedSlice(crd.Object, append(versions, second), "spec", "versions"))
		_, err = crds.Update(t.Context(), crd, metav1.UpdateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { restoreForeignCRDs(t, c) })
	}
	beta := func(resource string) dynamic.ResourceInterface {
		return c.Resource(schema.GroupVersionResource{Group: "unbounded-cloud.io", Version: "v1beta1", Resource: resource})
	}
	machine := object(t, "machines", uniqueName(), `spec: {host: {image: " x "}}`)
	machine.SetAPIVersion("unbounded-cloud.io/v1beta1")
	require.EventuallyWithT(t, func(collect *assert.CollectT) { // the version is served a moment later
		created, err := beta("machines").Create(t.Context(), machine, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if assert.NoError(collect, err) {
			image, _, _ := unstructured.NestedString(created.Object, "spec", "host", "image")
			assert.Equal(collect, "x", image)
		}
	}, patience, interval)

	operation := object(t, "machineoperations", uniqueName(), "{"+replace1+", "+pair+"}")
	store(t, c, "machineoperations", operation)
	change := []byte(`{"status":{"targets":[{"machineRef":"worker-1","input":{"hostImage":"img-b","provisioningFormat":"CloudInit"}}]}}`)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		_, err := beta("machineoperations").Patch(t.Context(), operation.GetName(), types.MergePatchType, change, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		assert.ErrorContains(collect, err, `may not change because "img-a" is frozen`)
	}, patience, interval)
}
