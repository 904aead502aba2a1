package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/operation/simulated"
)

// Targets by selector: taken once, sorted, frozen together, each with its own
// pair; Failed when one failed. One whose pair cannot be delivered spares all.
func TestSelector(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "hostreplace", "--simulated-provider=broken=img-b")
	rack := uniqueName()
	add := func(suffix, spec string) {
		u := object(t, "machines", rack+suffix, spec)
		u.SetLabels(map[string]string{"rack": rack})
		store(t, c, "machines", u)
	}
	outcome := func(parameters string, want [][]any) *unstructured.Unstructured {
		t.Helper()
		name := uniqueName()
		_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, parameters: {"+parameters+"}, machineSelector: {matchLabels: {rack: "+rack+"}}}"), metav1.CreateOptions{})
		require.NoError(t, err)
		op := finished(t, c, name)
		require.Equal(t, "Failed", phase(op))
		for i, want := range want {
			target := targetOf(t, op, i)
			input := target["input"].(map[string]any)
			require.Equal(t, want, []any{strings.TrimPrefix(target["machineRef"].(string), rack), input["hostImage"], input["provisioningFormat"], target["phase"], target["stage"],
				calls(t, ours, op, target["machineRef"].(string)).DestructiveCalls})
		}
		return op
	}
	add("-c", "spec: {"+host("image: img-c, provisioningFormat: CloudInit")+"}")
	add("-a", "spec: {"+host("image: img-a, provisioningFormat: CloudInit")+"}")
	add("-b", "spec: {"+host("image: img-b, provisioningFormat: CloudInit")+"}")
	op := outcome("maxFailures: '2'", [][]any{
		{"-a", "img-a", "CloudInit", "Complete", "Done", 1},
		{"-b", "img-b", "CloudInit", "Failed", "ProviderFailed", 1},
		{"-c", "img-c", "CloudInit", "Complete", "Done", 1},
	})
	require.Equal(t, "ProviderFailed", reason(op))
	require.Equal(t, `2 of 3 hosts were replaced; 1 failed, the first for Machine "`+rack+`-b": the provider reports: the image does not boot`, message(op))

	op = outcome("", [][]any{
		{"-a", "img-a", "CloudInit", "Complete", "Done", 1},
		{"-b", "img-b", "CloudInit", "Failed", "ProviderFailed", 1},
		{"-c", "img-c", "CloudInit", "Failed", "Halted", 0},
	})
	require.Equal(t, "ProviderFailed", reason(op))
	require.Equal(t, `1 of 3 hosts were replaced; 1 failed, the first for Machine "`+rack+`-b": the provider reports: the image does not boot; 1 were not begun because of that (Halted)`, message(op))
	require.Equal(t, `not replaced: Machine "`+rack+`-b" failed (the provider reports: the image does not boot), and no further host is begun once 1 failed (spec.parameters.maxFailures)`, targetOf(t, op, 2)["message"])

	require.NoError(t, patchSpec(t, c, rack+"-b", `{"host":{"provisioningFormat":"Ignition"}}`))
	op = outcome("maxFailures: '3'", [][]any{
		{"-a", "img-a", "CloudInit", "Failed", "Halted", 0},
		{"-b", "img-b", "Ignition", "Failed", "IgnitionNotDeliverable", 0},
		{"-c", "img-c", "CloudInit", "Failed", "Halted", 0},
	})
	require.Equal(t, "IgnitionNotDeliverable", reason(op))
	require.Contains(t, message(op), `Machine "`+rack+`-b": the image boots with Ignition`)
	require.Contains(t, message(op), "no host was replaced")

	t.Run("one that is stopped makes no further call", func(t *testing.T) {
		r, dir := newReconciler(t, c, func(live ctrlclient.Reader) ctrlclient.Reader { return live })
		oneAfterTheOther(r)
		rack := uniqueName()
		for _, suffix := range []string{"-a", "-b", "-c"} {
			u := object(t, "machines", rack+suffix, "spec: {host: {image: img-a, provisioningFormat: CloudInit, external: {provider: Stopper}}}")
			u.SetLabels(map[string]string{"rack": rack})
			store(t, c, "machines", u)
		}
		name := uniqueName()
		created, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, parameters: {maxInFlight: '3'}, machineSelector: {matchLabels: {rack: "+rack+"}}}"), metav1.CreateOptions{})
		require.NoError(t, err)
		r.Providers = map[string]operation.Provider{"Stopper": stopper{r.Providers[simulated.Name], func() {
			_, err := c.of("machineoperations").Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":{"phase":"Failed","message":"stopped by hand"}}`), metav1.PatchOptions{}, "status")
			require.NoError(t, err)
		}}}
		op := reconcileUntilFinished(t, c, r, name)
		require.Equal(t, "stopped by hand", message(op))
		for suffix, acts := range map[string]int{"-a": 1, "-b": 0, "-c": 0} {
			record, err := (&simulated.DirStore{Dir: dir}).Get(t.Context(), simulated.ID(string(created.GetUID())+"/"+rack+suffix))
			require.NoError(t, err)
			if acts == 0 {
				require.Nil(t, record)
			} else {
				require.Equal(t, acts, record.DestructiveCalls)
			}
		}
	})
	t.Run("a pinned version is not an unpinned one", func(t *testing.T) {
		rack := uniqueName()
		v := object(t, "machineconfigurationversions", rack+"-v1", "spec: {version: 1, template: {host: {image: img-t, provisioningFormat: CloudInit}}}")
		v.SetLabels(map[string]string{v1alpha3.ConfigurationLabel: rack})
		store(t, c, "machineconfigurationversions", v)
		for suffix, pin := range map[string]string{"-a": "", "-b": ", version: 0"} {
			u := object(t, "machines", rack+suffix, "spec: {"+host("")+", configurationRef: {name: "+rack+pin+"}}")
			u.SetLabels(map[string]string{"rack": rack})
			store(t, c, "machines", u)
		}
		name := uniqueName()
		_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: "+rack+"}}}"), metav1.CreateOptions{})
		require.NoError(t, err)
		op := finished(t, c, name)
		require.Equal(t, "VersionNotFound", reason(op))
		require.Contains(t, message(op), rack+`-v0", which spec.configurationRef pins, does not exist`)
	})
	t.Run("one that cannot be resolved stops all", func(t *testing.T) {
		add("-d", "{spec: {"+host("")+", configurationRef: {name: nope}}}")
		name := uniqueName()
		_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: "+rack+"}}}"), metav1.CreateOptions{})
		require.NoError(t, err)
		op := finished(t, c, name)
		require.Equal(t, "VersionNotFound", reason(op), message(op))
		require.NotContains(t, op.Object["status"], "targets")
	})
}
