package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// With the webhook gone, what it would have something to say of fails closed,
// everything else goes on, and all heals when it is back.
func TestOutage(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	machine, operation, waiting := uniqueName(), uniqueName(), uniqueName()
	store(t, c, "machines", object(t, "machines", machine, "spec: {host: {image: img-a, provisioningFormat: CloudInit}}"))
	store(t, c, "machineoperations", object(t, "machineoperations", operation, "{"+replace1+", "+pair+"}"))
	createOperation(t, c, waiting, "machineRef: worker-1")

	require.NoError(t, ours.KillWebhook())
	t.Cleanup(func() { require.NoError(t, ours.StartWebhook(context.Background())) })

	patch := func(resource, name, body string, subresources ...string) error {
		_, err := c.of(resource).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
		return err
	}
	t.Run("status reports on Machines go on, guarded by the enum", func(t *testing.T) {
		require.NoError(t, patch("machines", machine, `{"status":{"observedProvisioningFormat":"Ignition"}}`, "status"))
		require.ErrorContains(t, patch("machines", machine, `{"status":{"observedProvisioningFormat":"ignition"}}`, "status"), `supported values: "CloudInit", "Ignition"`)
	})
	t.Run("an operation can be paused", func(t *testing.T) {
		if everyWrite {
			t.Skip("the matchConditions let it pass by the webhook")
		}
		require.NoError(t, patch("machineoperations", operation, `{"spec":{"parameters":{"pause":"true"}}}`))
	})
	t.Run("other API groups go on", func(t *testing.T) {
		for _, manifest := range []string{
			"{apiVersion: v1, kind: Namespace, metadata: {name: outage}}",
			"{apiVersion: v1, kind: Secret, metadata: {name: outage, namespace: default}}",
			"{apiVersion: v1, kind: Node, metadata: {name: outage}}",
			"{apiVersion: v1, kind: Pod, metadata: {name: outage, namespace: default}, spec: {automountServiceAccountToken: false, containers: [{name: a, image: b}]}}",
			"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: outage, namespace: default}}",
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: outage, namespace: default}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}}",
		} {
			out, err := ours.Kubectl(t.Context(), []byte(manifest), "apply", "-f", "-")
			require.NoError(t, err, out)
		}
	})
	t.Run("what is sent to the webhook fails closed", func(t *testing.T) {
		for _, test := range []struct{ webhook, resource, name, body, sub string }{
			{"machines.mutate", "machines", machine, `{"spec":{"host":{"image":" img-b"}}}`, ""},
			{"machines.validate", "machines", machine, `{"spec":{"host":{"image":"img\u200bb"}}}`, ""},
			{"machines.validate", "machines", machine, `{"spec":{"host":{"provisioningFormat":null}}}`, ""},
			{"machineoperations.validate", "machineoperations", waiting, `{"spec":{"machineRef":null,"machineSelector":{}}}`, ""},
			{"machineoperations-status.validate", "machineoperations", operation, `{"status":{"targets":[]}}`, "status"},
			{"machineoperations-status.mutate", "machineoperations", operation, `{"status":{"targets":[{"machineRef":"b","input":{"hostImage":" b"}}]}}`, "status"},
		} {
			if everyWrite { // the first direction is asked of each
				test.webhook = strings.NewReplacer("machines.validate", "machines.mutate", "status.validate", "status.mutate").Replace(test.webhook)
			}
			var subresources []string
			if test.sub != "" {
				subresources = []string{test.sub}
			}
			err := patch(test.resource, test.name, test.body, subresources...)
			require.True(t, apierrors.IsInternalError(err), "%v", err)
			require.ErrorContains(t, err, `failed calling webhook "`+test.webhook+`.hostformat.unbounded-cloud.io"`)
			require.ErrorContains(t, err, "connection refused")
		}
		for resource, text := range map[string]string{
			"machines": `spec: {host: {image: "a\tb"}}`, "machineconfigurations": "spec: {template: {host: {image: ' a'}}}",
			"machineconfigurationversions": "spec: {version: 1, template: {host: {image: ' a'}}}",
			"machineoperations":            "spec: {operationKind: HostReplace, machineSelector: {}}",
		} {
			_, err := c.of(resource).Create(t.Context(), object(t, resource, uniqueName(), text), metav1.CreateOptions{})
			require.ErrorContains(t, err, "failed calling webhook", resource)
		}
	})
	t.Run("what the webhook has nothing to say of goes on", func(t *testing.T) {
		if everyWrite {
			t.Skip("every write is sent to the webhook")
		}
		require.NoError(t, patch("machines", machine, `{"metadata":{"labels":{"a":"b"}}}`))
		require.NoError(t, patch("machines", machine, `{"spec":{"host":{"image":"img-b"}}}`))
		require.NoError(t, patch("machineoperations", operation, `{"metadata":{"finalizers":["example.com/a"]}}`))
		require.NoError(t, patch("machineoperations", operation, `{"metadata":{"finalizers":null}}`))
		require.NoError(t, patch("machineoperations", operation, `{"status":{"phase":"InProgress"}}`, "status"))
		for resource, text := range map[string]string{
			"machines": "{}", "machineconfigurations": "{}", "machineconfigurationversions": "spec: {version: 1}", "machineoperations": replace1,
		} {
			store(t, c, resource, object(t, resource, uniqueName(), text))
		}
	})
	t.Run("deletion is free", func(t *testing.T) {
		require.NoError(t, c.of("machineoperations").Delete(t.Context(), operation, metav1.DeleteOptions{}))
	})

	require.NoError(t, ours.StartWebhook(t.Context()))
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.NoError(collect, patch("machines", machine, `{"spec":{"host":{"image":" img-c "}}}`))
	}, patience, interval)
	require.Equal(t, map[string]any{"image": "img-c", "provisioningFormat": "CloudInit"}, get(t, c, "machines", machine).Object["spec"].(map[string]any)["host"])
	require.ErrorContains(t, patch("machines", machine, `{"spec":{"host":{"provisioningFormat":null}}}`), "must be declared", "the report that came meanwhile counts")
}

// What the CRD can say, it says while no webhook is installed, and no more
// than the webhook would.
func TestRulesOfTheCRDs(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	require.NoError(t, ours.RemoveWebhook(t.Context()))
	t.Cleanup(func() { require.NoError(t, ours.InstallWebhook(context.Background())) })

	status := func(stored, now string) error {
		name := uniqueName()
		store(t, c, "machineoperations", object(t, "machineoperations", name, "{"+replace1+", status: {targets: ["+stored+"]}}"))
		u := get(t, c, "machineoperations", name)
		u.Object["status"] = object(t, "machineoperations", name, "status: {targets: ["+now+"]}").Object["status"]
		_, err := c.of("machineoperations").UpdateStatus(t.Context(), u, metav1.UpdateOptions{})
		return err
	}
	const frozenPair = "{machineRef: a, input: {hostImage: img-a, provisioningFormat: CloudInit}}"
	for name, test := range map[string]struct {
		stored, now string
		denied      bool
	}{
		"phase only":                     {frozenPair, "{machineRef: a, phase: Failed, input: {hostImage: img-a, provisioningFormat: CloudInit}}", false},
		"order":                          {frozenPair + ", {machineRef: b}", "{machineRef: b}, " + frozenPair, false},
		"image":                          {frozenPair, "{machineRef: a, input: {hostImage: img-b, provisioningFormat: CloudInit}}", true},
		"format":                         {frozenPair, "{machineRef: a, input: {hostImage: img-a, provisioningFormat: Ignition}}", true},
		"image gone":                     {frozenPair, "{machineRef: a, input: {provisioningFormat: CloudInit}}", true},
		"image blank":                    {frozenPair, "{machineRef: a, input: {hostImage: ' ', provisioningFormat: CloudInit}}", true},
		"format gone":                    {frozenPair, "{machineRef: a, input: {hostImage: img-a}}", true},
		"input gone":                     {frozenPair, "{machineRef: a}", true},
		"kept image replaced":            {"{machineRef: a, input: {provisioningFormat: CloudInit}}", frozenPair, true},
		"kept image written as empty":    {"{machineRef: a, input: {provisioningFormat: CloudInit}}", "{machineRef: a, input: {hostImage: '', provisioningFormat: CloudInit}}", false},
		"legacy gains a format":          {"{machineRef: a, input: {hostImage: img-a}}", frozenPair, false},
		"legacy changes its image":       {"{machineRef: a, input: {hostImage: img-a}}", "{machineRef: a, input: {hostImage: img-b}}", true},
		"legacy loses its image":         {"{machineRef: a, input: {hostImage: img-a}}", "{machineRef: a}", true},
		"a blank image was never set":    {"{machineRef: a, input: {hostImage: ' '}}", frozenPair, false},
		"whitespace comes off":           {"{machineRef: a, input: {hostImage: ' img-a '}}", "{machineRef: a, input: {hostImage: img-a}}", false},
		"an empty input is filled":       {"{machineRef: a, input: {}}", frozenPair, false},
		"a target without input is":      {"{machineRef: a}", frozenPair, false},
		"a target gone is the webhook's": {frozenPair, "{machineRef: b}", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := status(test.stored, test.now)
			if test.denied {
				require.ErrorContains(t, err, "input.hostImage and input.provisioningFormat are immutable once set")
			} else {
				require.NoError(t, err)
			}
		})
	}

	const (
		frozenTrue = "conditions: [{type: Complete, status: 'True', reason: R, message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}, {type: Frozen, status: 'True', reason: R, message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}]"
		kindWords  = "spec.operationKind: Forbidden: operationKind" + celBegun
		refWords   = "spec.machineRef: Forbidden: machineRef" + celBegun
		selWords   = "spec.machineSelector: Forbidden: machineSelector" + celBegun
		moreWords  = "status.targets: Forbidden: no target may be added once the condition Frozen is True"
	)
	rack := func(selector string) string {
		return "spec: {operationKind: HostReboot, machineSelector: " + selector + "}"
	}
	for name, test := range map[string]struct {
		stored, now string
		denied      []string
	}{
		"begun by a phase":          {"{" + replace1 + ", status: {phase: Pending}}", "spec: {operationKind: HostReboot, machineRef: worker-1}", []string{kindWords}},
		"begun by a target":         {"{" + replace1 + ", status: {targets: [{machineRef: a}]}}", "spec: {operationKind: HostReplace, machineRef: worker-2}", []string{refWords}},
		"all at once":               {"{" + replace1 + ", status: {phase: Pending}}", rack("{}"), []string{kindWords, refWords, selWords}},
		"not begun":                 {"{" + replace1 + ", status: {message: m, targets: []}}", rack("{}"), nil},
		"without a status":          {replace1, rack("{}"), nil},
		"free fields":               {"{" + replace1 + ", status: {phase: Pending}}", "spec: {operationKind: HostReplace, machineRef: worker-1, parameters: {pause: 'true'}, ttlSecondsAfterFinished: 5}", nil},
		"Machine gone":              {"{" + replace1 + ", status: {phase: Pending}}", "spec: {operationKind: HostReplace}", []string{refWords}},
		"empty Machine":             {"{" + rack("{}") + ", status: {phase: Pending}}", "spec: {operationKind: HostReboot, machineRef: '', machineSelector: {}}", nil},
		"spec gone":                 {"{" + replace1 + ", status: {phase: Pending}}", "{}", []string{kindWords, refWords}},
		"selector gone":             {"{" + rack("{}") + ", status: {phase: Pending}}", "spec: {operationKind: HostReboot}", []string{selWords}},
		"selector added":            {"{spec: {operationKind: HostReboot}, status: {phase: Pending}}", rack("{}"), []string{selWords}},
		"selector's labels":         {"{" + rack("{matchLabels: {a: b}}") + ", status: {phase: Pending}}", rack("{matchLabels: {a: c}}"), []string{selWords}},
		"selector's labels gone":    {"{" + rack("{matchLabels: {a: b}}") + ", status: {phase: Pending}}", rack("{}"), []string{selWords}},
		"selector's keys":           {"{" + rack("{matchExpressions: [{key: a, operator: Exists}]}") + ", status: {phase: Pending}}", rack("{matchExpressions: [{key: b, operator: Exists}]}"), []string{selWords}},
		"selector's operators":      {"{" + rack("{matchExpressions: [{key: a, operator: Exists}]}") + ", status: {phase: Pending}}", rack("{matchExpressions: [{key: a, operator: DoesNotExist}]}"), []string{selWords}},
		"selector's values":         {"{" + rack("{matchExpressions: [{key: a, operator: In, values: [x]}]}") + ", status: {phase: Pending}}", rack("{matchExpressions: [{key: a, operator: In, values: [z]}]}"), []string{selWords}},
		"selector's values gone":    {"{" + rack("{matchExpressions: [{key: a, operator: In, values: [x]}]}") + ", status: {phase: Pending}}", rack("{matchExpressions: [{key: a, operator: In}]}"), []string{selWords}},
		"selector's expressions":    {"{" + rack("{matchExpressions: [{key: a, operator: Exists}]}") + ", status: {phase: Pending}}", rack("{matchExpressions: [{key: a, operator: Exists}, {key: b, operator: Exists}]}"), []string{selWords}},
		"selector's meaning":        {"{" + rack("{matchLabels: {}, matchExpressions: [{key: a, operator: Exists, values: []}]}") + ", status: {phase: Pending}}", rack("{matchExpressions: [{key: a, operator: Exists}]}"), nil},
		"selector, emptied further": {"{" + rack("{matchLabels: {}, matchExpressions: []}") + ", status: {phase: Pending}}", rack("{}"), nil},

		"final, turned back":          {"{" + replace1 + ", status: {phase: Failed, targets: [" + frozenPair + "]}}", "status: {phase: Pending, targets: [" + frozenPair + "]}", []string{celFinal}},
		"final, changed":              {"{" + replace1 + ", status: {phase: Complete, targets: [{machineRef: b}, " + frozenPair + "]}}", "status: {phase: Failed, targets: [{machineRef: b}, " + frozenPair + "]}", []string{celFinal}},
		"final, removed":              {"{" + replace1 + ", status: {phase: Complete, targets: [" + frozenPair + "]}}", "status: {targets: [" + frozenPair + "]}", []string{celFinal}},
		"final, status removed":       {"{" + replace1 + ", status: {phase: Complete, targets: [" + frozenPair + "]}}", "{}", []string{celFinal}},
		"final, stays":                {"{" + replace1 + ", status: {phase: Complete, targets: [" + frozenPair + "]}}", "status: {phase: Complete, message: m, targets: [" + frozenPair + "]}", nil},
		"final, of a reboot":          {"{" + rack("{}") + ", status: {phase: Failed, targets: [" + frozenPair + "]}}", "status: {phase: Pending, targets: [" + frozenPair + "]}", nil},
		"final, of a legacy snapshot": {"{" + replace1 + ", status: {phase: Failed, targets: [{machineRef: a, input: {hostImage: img-a}}]}}", "status: {phase: Pending, targets: [{machineRef: a, input: {hostImage: img-a}}]}", nil},
		"final, without targets":      {"{" + replace1 + ", status: {phase: Failed}}", "status: {phase: Pending}", nil},
		"not final yet":               {"{" + replace1 + ", status: {phase: InProgress, targets: [" + frozenPair + "]}}", "status: {phase: Complete, targets: [" + frozenPair + "]}", nil},

		"a target more, frozen":           {"{" + replace1 + ", status: {" + frozenTrue + ", targets: [" + frozenPair + "]}}", "status: {" + frozenTrue + ", targets: [" + frozenPair + ", {machineRef: b}]}", []string{moreWords}},
		"a target more than none, frozen": {"{" + replace1 + ", status: {" + frozenTrue + "}}", "status: {" + frozenTrue + ", targets: [{machineRef: b}]}", []string{moreWords}},
		"a target more, Frozen taken off": {"{" + replace1 + ", status: {" + frozenTrue + "}}", "status: {targets: [{machineRef: b}]}", []string{moreWords}},
		"a target more, not frozen":       {"{" + replace1 + ", status: {" + strings.Replace(frozenTrue, "Frozen, status: 'True'", "Frozen, status: 'False'", 1) + ", targets: [" + frozenPair + "]}}", "status: {targets: [" + frozenPair + ", {machineRef: b}]}", nil},
		"frozen in the same write":        {replace1, "status: {" + frozenTrue + ", targets: [" + frozenPair + "]}", nil},
		"a target less, frozen":           {"{" + replace1 + ", status: {" + frozenTrue + ", targets: [" + frozenPair + ", {machineRef: b}]}}", "status: {" + frozenTrue + ", targets: [" + frozenPair + "]}", nil},
		"a place taken is the webhook's":  {"{" + replace1 + ", status: {" + frozenTrue + ", targets: [" + frozenPair + ", {machineRef: b}]}}", "status: {" + frozenTrue + ", targets: [" + frozenPair + ", {machineRef: c}]}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			id := uniqueName()
			store(t, c, "machineoperations", object(t, "machineoperations", id, test.stored))
			u, now := get(t, c, "machineoperations", id), object(t, "machineoperations", id, test.now)
			part, subresources := "spec", []string(nil)
			if strings.HasPrefix(test.now, "status") || strings.HasPrefix(name, "final, status") {
				part, subresources = "status", []string{"status"}
			}
			delete(u.Object, part)
			if value, ok := now.Object[part]; ok {
				u.Object[part] = value
			}
			_, err := c.of("machineoperations").Update(t.Context(), u, metav1.UpdateOptions{}, subresources...)
			if len(test.denied) == 0 {
				require.NoError(t, err)
			}
			for _, words := range test.denied {
				require.ErrorContains(t, err, words)
			}
		})
	}

	t.Run("deployed version", func(t *testing.T) {
		name := uniqueName()
		store(t, c, "machineconfigurationversions", object(t, "machineconfigurationversions", name, "{spec: {version: 1, template: {host: {image: img-t}}}, status: {deployed: true}}"))
		for _, body := range []string{`{"spec":{"template":{"host":{"image":"img-u"}}}}`, `{"spec":null}`, `{"spec":{"version":2}}`} {
			_, err := c.of("machineconfigurationversions").Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
			require.ErrorContains(t, err, "spec is immutable once status.deployed is true")
		}
		_, err := c.of("machineconfigurationversions").Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	})
}
