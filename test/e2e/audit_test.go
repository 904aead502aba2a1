package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// For random clusters, audit names exactly what the webhook refuses or trims when the
// image and format of each stored object are taken away and written back.
func TestAuditAgreesWithTheWebhook(t *testing.T) {
	needsLocal(t)
	foreign := foreignCRDs.take(t)
	c := newClient(t, foreign) // whose CRDs take any format
	require.NoError(t, foreign.RemoveWebhook(t.Context()))
	t.Cleanup(func() { require.NoError(t, foreign.InstallWebhook(context.Background())) })
	random := rand.New(rand.NewPCG(20, 26))
	prefix := uniqueName() + "-audit-"
	var all []stored
	for n := range roundsOf(60, 500) {
		all = append(all, randomCluster(t, random, fmt.Sprintf("%s%d", prefix, n))...)
	}
	inParallel(t, all, func(s stored) error {
		_, err := c.of(s.resource).Create(t.Context(), s.object.DeepCopy(), metav1.CreateOptions{})
		if status, ok := s.object.Object["status"]; err == nil && ok {
			_, err = c.of(s.resource).Patch(t.Context(), s.object.GetName(), types.MergePatchType, encode(t, map[string]any{"status": status}), metav1.PatchOptions{}, "status")
		}
		return err
	})
	t.Cleanup(func() {
		inParallel(t, all, func(s stored) error {
			return c.of(s.resource).Delete(context.Background(), s.object.GetName(), metav1.DeleteOptions{})
		})
	})

	stdout, stderr, code := plugin(t, foreign, "audit", "-o", "json", "--chunk-size=97")
	require.Equal(t, 1, code, stderr)
	var findings []struct{ Finding, Rule, Kind, Name string }
	require.NoError(t, json.Unmarshal([]byte(stdout), &findings))
	audited := map[string]map[string]bool{"refuse": {}, "trim": {}, "legacy": {}}
	for _, f := range findings {
		if names, asked := audited[f.Finding]; asked && strings.HasPrefix(f.Name, prefix) {
			names[f.Kind+" "+f.Name] = true
		}
	}

	inParallel(t, all, func(s stored) error {
		_, err := c.of(s.resource).Patch(t.Context(), s.object.GetName(), types.MergePatchType, s.patch(t, nil), metav1.PatchOptions{}, s.subresource()...)
		if err == nil && s.resource == "machineconfigurationversions" { // that a deployed one may not change is no finding
			_, err = c.of(s.resource).Patch(t.Context(), s.object.GetName(), types.MergePatchType, []byte(`{"status":{"deployed":false}}`), metav1.PatchOptions{}, "status")
		}
		return err
	})
	require.NoError(t, foreign.InstallWebhook(t.Context()))
	want := map[string]map[string]bool{"refuse": {}, "trim": {}, "legacy": {}}
	var mu sync.Mutex
	inParallel(t, all, func(s stored) error {
		written, _, _ := unstructured.NestedFieldCopy(s.object.Object, s.path()...)
		after, err := c.of(s.resource).Patch(t.Context(), s.object.GetName(), types.MergePatchType, s.patch(t, written), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, s.subresource()...)
		mu.Lock()
		defer mu.Unlock()
		key := s.object.GetKind() + " " + s.object.GetName()
		if s.legacy {
			want["legacy"][key] = true
		}
		if apierrors.IsInvalid(err) {
			want["refuse"][key] = true
			delete(audited["trim"], key) // the API server shows one of both
			return nil
		}
		if err == nil {
			now, _, _ := unstructured.NestedFieldCopy(after.Object, s.path()...)
			if !assert.ObjectsAreEqual(written, now) {
				want["trim"][key] = true
			}
		}
		return err
	})
	for finding := range want {
		require.NotEmpty(t, want[finding], finding)
		require.Equal(t, slices.Sorted(maps.Keys(want[finding])), slices.Sorted(maps.Keys(audited[finding])), finding)
	}
	t.Logf("%d objects: %d refused, %d trimmed, %d legacy", len(all), len(want["refuse"]), len(want["trim"]), len(want["legacy"]))
}

// stored is an object of a random cluster.
type stored struct {
	resource string
	object   *unstructured.Unstructured
	legacy   bool // it has a snapshot from before the format field
}

// path is where the judged fields of an object stand.
func (s stored) path() []string {
	switch s.resource {
	case "machines":
		return []string{"spec", "host"}
	case "machineoperations":
		return []string{"status", "targets"}
	default:
		return []string{"spec", "template", "host"}
	}
}

func (s stored) subresource() []string {
	if s.resource == "machineoperations" {
		return []string{"status"}
	}
	return nil
}

// patch sets what stands at the path.
func (s stored) patch(t *testing.T, value any) []byte {
	path := s.path()
	for _, field := range slices.Backward(path) {
		value = map[string]any{field: value}
	}
	return encode(t, value)
}

func randomCluster(t *testing.T, random *rand.Rand, name string) []stored {
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	image := func() string {
		return pick("", "", "image: img-a, ", "image: img-a, ", "image: img-a, ", `image: " img-a ", `, `image: "\u00a0", `, `image: "img\u200b", `, "image: "+strings.Repeat("x", 2049)+", ")
	}
	format := func() string {
		return pick("", "", "provisioningFormat: CloudInit", "provisioningFormat: Ignition", "provisioningFormat: cloud-init", `provisioningFormat: ""`, "provisioningFormat: CLOUDINIT")
	}
	observed := func() string {
		return pick("", ", status: {observedProvisioningFormat: CloudInit}", ", status: {observedProvisioningFormat: Ignition}")
	}
	all := []stored{
		{"machineconfigurations", object(t, "machineconfigurations", name, "spec: {template: {host: {"+image()+format()+"}}}"), false},
		{"machineconfigurationversions", object(t, "machineconfigurationversions", name+"-v1", "{spec: {version: 1, template: {host: {"+image()+format()+"}}}, status: {deployed: "+pick("true", "false")+"}}"), false},
	}
	for n := range 2 {
		all = append(all, stored{"machines", object(t, "machines", fmt.Sprintf("%s-%d", name, n), "{spec: {host: {"+image()+format()+"}}"+observed()+"}"), false})
	}
	var targets []string
	legacy := false
	for n := range 2 {
		format, phase := format(), pick("Pending", "Complete")
		legacy = legacy || (phase == "Pending" && (format == "" || strings.HasSuffix(format, `""`)))
		hostImage := strings.Replace(image(), "image", "hostImage", 1)
		targets = append(targets, fmt.Sprintf("{machineRef: %s-%d, phase: %s, input: {%s%s}}", name, n, phase, hostImage, format))
	}
	return append(all, stored{"machineoperations", object(t, "machineoperations", name, "{"+replace1+", status: {targets: ["+strings.Join(targets, ", ")+"]}}"), legacy})
}

// inParallel does something with each object, several at a time.
func inParallel(t *testing.T, all []stored, do func(stored) error) {
	t.Helper()
	errs := make([]error, len(all))
	var group sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range all {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(all[i])
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
}
