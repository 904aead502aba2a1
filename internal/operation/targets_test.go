package operation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// A status write that reopens a finished operation and adds a Machine to it does not
// replace that Machine. Such a write only succeeds without the webhook and our CRD.
func TestTargetsOfOthers(t *testing.T) {
	began := time.Unix(1_800_000_000, 0)
	pair := map[string]any{"hostImage": "img-x", "provisioningFormat": "CloudInit"}
	pinned := map[string]any{"hostImage": "img-x", "provisioningFormat": "CloudInit", "machineUID": "m-2", "provider": "P"}
	for name, test := range map[string]struct {
		selector bool // the operation selects, and names no Machine
		added    map[string]any
		words    string
	}{
		"another Machine": {false, map[string]any{"machineRef": "worker-2", "input": pinned}, `spec.machineRef names Machine "worker-1"`},
		"without pins":    {true, map[string]any{"machineRef": "worker-2", "input": pair}, "this one lacks them"},
		"its own again":   {false, map[string]any{"machineRef": "worker-1", "input": pinned}, "the Machine is a target already"},
	} {
		t.Run(name, func(t *testing.T) {
			provider := &forgetful{}
			r := reconcilerFor(t, began, clocktesting.NewFakePassiveClock(began), provider)
			other := &v1alpha3.Machine{}
			require.NoError(t, r.Live.Get(t.Context(), types.NamespacedName{Name: "worker-1"}, other))
			other.Name, other.UID, other.ResourceVersion = "worker-2", "m-2", ""
			require.NoError(t, r.Writer.Create(t.Context(), other))
			op := &unstructured.Unstructured{}
			op.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperation"))
			reconcileOp := func() {
				t.Helper()
				for range 8 {
					r.step(t)
				}
				require.NoError(t, r.Live.Get(t.Context(), types.NamespacedName{Name: "op"}, op))
			}
			reconcileOp()
			require.Equal(t, "Complete", text(op.Object, "status", "phase"))
			require.Equal(t, 1, provider.acts)

			if test.selector {
				unstructured.RemoveNestedField(op.Object, "spec", "machineRef")
				require.NoError(t, unstructured.SetNestedStringMap(op.Object, map[string]string{"rack": "3"}, "spec", "machineSelector", "matchLabels"))
				require.NoError(t, r.Writer.Patch(t.Context(), op.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"machineRef":null,"machineSelector":{"matchLabels":{"rack":"3"}}}}`))))
				require.NoError(t, r.Live.Get(t.Context(), types.NamespacedName{Name: "op"}, op))
			}
			targets, _, _ := unstructured.NestedSlice(op.Object, "status", "targets")
			was := op.DeepCopy()
			require.NoError(t, unstructured.SetNestedSlice(op.Object, append(targets, test.added), "status", "targets"))
			require.NoError(t, unstructured.SetNestedField(op.Object, "InProgress", "status", "phase"))
			require.NoError(t, r.Writer.Status().Patch(t.Context(), op, client.MergeFrom(was)))
			reconcileOp()
			added, _, _ := unstructured.NestedSlice(op.Object, "status", "targets")
			target := added[1].(map[string]any)
			require.Equal(t, "Failed", target["phase"])
			require.Contains(t, target["message"], test.words)
			require.Equal(t, 1, provider.acts)
			// The duplicate leaves its claim to the target that has used it.
			_, claim, err := r.readClaim(t.Context(), resolve.Host{UID: "m-1", Provider: "P"})
			require.NoError(t, err)
			require.Equal(t, resolve.Holder{Name: "op", UID: "u-1"}, claim.Holder)
		})
	}
}
