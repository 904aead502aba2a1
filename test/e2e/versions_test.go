package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/operation/simulated"
)

// One version after the other is cut, as deployments make it necessary.
func TestConfigurationController(t *testing.T) {
	needsLocal(t)
	c := newClient(t, foreign)
	running := startControllers(t, foreign, foreign.Kubeconfig, "machineconfiguration")
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
			latest, _, _ := unstructured.NestedInt64(get(t, c, "machineconfigurations", name).Object, "status", "latestVersion")
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
			assert.Contains(collect, out, "version 2147483647 is the last that there can be")
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
			assert.GreaterOrEqual(collect, strings.Count(running.log.String(), "Reconciler error"), 5)
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

// With both controllers in one process, a version is deployed before its pair
// is frozen: no edit can come in between.
func TestVersionIsDeployedFirst(t *testing.T) {
	needsLocal(t)
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

// reader passes reads on, and does something before or instead.
type reader struct {
	ctrlclient.Reader
	get  func(context.Context, ctrlclient.ObjectKey, ctrlclient.Object) (handled bool, err error)
	list func(ctrlclient.ObjectList)
}

func (r reader) Get(ctx context.Context, key ctrlclient.ObjectKey, o ctrlclient.Object, opts ...ctrlclient.GetOption) error {
	if r.get != nil {
		if handled, err := r.get(ctx, key, o); handled {
			return err
		}
	}
	return r.Reader.Get(ctx, key, o, opts...)
}

func (r reader) List(ctx context.Context, l ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
	err := r.Reader.List(ctx, l, opts...)
	if r.list != nil {
		r.list(l)
	}
	return err
}

// noIndex lets a plain client stand in for a cache with its index.
type noIndex struct{ ctrlclient.Reader }

func (n noIndex) List(ctx context.Context, l ctrlclient.ObjectList, _ ...ctrlclient.ListOption) error {
	return n.Reader.List(ctx, l)
}

func newReconciler(t *testing.T, live func(ctrlclient.Reader) ctrlclient.Reader) (*operation.Reconciler, string) {
	t.Helper()
	s := runtime.NewScheme()
	require.NoError(t, v1alpha3.AddToScheme(s))
	writer, err := ctrlclient.New(ours.Config, ctrlclient.Options{Scheme: s})
	require.NoError(t, err)
	userData, err := operation.NewUserData(nil)
	require.NoError(t, err)
	dir := t.TempDir()
	return &operation.Reconciler{
		Live: live(writer), Cache: noIndex{writer}, Writer: writer, Recorder: events.NewFakeRecorder(100),
		Providers: map[string]operation.Provider{simulated.Name: &simulated.Provider{Options: simulated.Options{ForgetKeys: true}, Store: &simulated.DirStore{Dir: dir}}},
		UserData:  userData, Clock: clock.RealClock{}, Backoff: operation.Backoff{Base: time.Millisecond, Cap: time.Millisecond}, PollInterval: time.Millisecond,
	}, dir
}

// reconcileUntilFinished drives a reconciler by hand. Errors are tried again.
func reconcileUntilFinished(t *testing.T, c client, r *operation.Reconciler, name string) *unstructured.Unstructured {
	t.Helper()
	var last error
	for range 100 {
		_, last = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		if op := get(t, c, "machineoperations", name); phase(op) == "Complete" || phase(op) == "Failed" {
			return op
		}
	}
	require.Fail(t, "no end", "%v: %v", last, get(t, c, "machineoperations", name).Object["status"])
	return nil
}

// The list of versions changes between any two reads: image and format come
// from one and the same version all the same.
func TestVersionsAreReadOnce(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	machine := uniqueName()
	version := func(number int) {
		format := []string{"CloudInit", "Ignition"}[number%2]
		v := object(t, "machineconfigurationversions", fmt.Sprintf("%s-v%d", machine, number), fmt.Sprintf("spec: {version: %d, template: {host: {image: img-%s-%d, provisioningFormat: %s}}}", number, format, number, format))
		v.SetLabels(map[string]string{v1alpha3.ConfigurationLabel: machine})
		store(t, c, "machineconfigurationversions", v)
	}
	version(1)
	store(t, c, "machines", object(t, "machines", machine, "spec: {"+host("")+", configurationRef: {name: "+machine+"}}"))
	number := 1
	change := func() { number++; version(number) }
	r, _ := newReconciler(t, func(live ctrlclient.Reader) ctrlclient.Reader {
		return reader{Reader: live, list: func(l ctrlclient.ObjectList) {
			if _, ok := l.(*v1alpha3.MachineConfigurationVersionList); ok {
				change()
			}
		}, get: func(context.Context, ctrlclient.ObjectKey, ctrlclient.Object) (bool, error) {
			change()
			return false, nil
		}}
	})
	for range 10 {
		name := newOperation(t, c, machine)
		op := reconcileUntilFinished(t, c, r, name)
		input := inputOf(t, op)
		require.True(t, strings.HasPrefix(input["hostImage"].(string), "img-"+input["provisioningFormat"].(string)+"-"), "%v", input)
		require.NoError(t, c.of("machineoperations").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	require.Greater(t, number, 20)
}

// Reads that lag by five writes, over a provider that forgets: what was not
// recorded on top of the newest state is not called.
func TestReadsThatLag(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	machine := newMachine(t, c)
	name := newOperation(t, c, machine)
	var seen []*unstructured.Unstructured // every state that was there, oldest first
	var reads atomic.Int32
	r, dir := newReconciler(t, func(live ctrlclient.Reader) ctrlclient.Reader {
		return reader{Reader: live, get: func(ctx context.Context, key ctrlclient.ObjectKey, o ctrlclient.Object) (bool, error) {
			u, ok := o.(*unstructured.Unstructured)
			if !ok || key.Name != name {
				return false, nil
			}
			fresh := u.DeepCopy()
			if err := live.Get(ctx, key, fresh); err != nil {
				return true, err
			}
			if len(seen) == 0 || seen[len(seen)-1].GetResourceVersion() != fresh.GetResourceVersion() {
				seen = append(seen, fresh)
			}
			// Five reads in six are of an older state, each in turn.
			n := int(reads.Add(1))
			back := n % 6
			seen[max(0, len(seen)-1-back)].DeepCopyInto(u)
			return true, nil
		}}
	})
	op := reconcileUntilFinished(t, c, r, name)
	require.Equal(t, "Complete", phase(op), message(op))
	for range 12 {
		_, _ = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	record, err := (&simulated.DirStore{Dir: dir}).Get(t.Context(), simulated.ID(string(op.GetUID())+"/"+machine))
	require.NoError(t, err)
	require.Equal(t, 1, record.DestructiveCalls)
	require.Equal(t, op.Object["status"], get(t, c, "machineoperations", name).Object["status"])
}

// Targets by selector: taken once, sorted, frozen together, each with its own
// pair; Failed when one failed.
func TestSelector(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	startControllers(t, ours, ours.Kubeconfig, "hostreplace")
	rack := uniqueName()
	add := func(suffix, spec string) {
		u := object(t, "machines", rack+suffix, spec)
		u.SetLabels(map[string]string{"rack": rack})
		store(t, c, "machines", u)
	}
	add("-c", "spec: {"+host("image: img-c, provisioningFormat: CloudInit")+"}")
	add("-a", "spec: {"+host("image: img-a, provisioningFormat: CloudInit")+"}")
	add("-b", "spec: {"+host("image: img-b, provisioningFormat: Ignition")+"}")
	name := uniqueName()
	_, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: "+rack+"}}}"), metav1.CreateOptions{})
	require.NoError(t, err)
	op := finished(t, c, name)
	require.Equal(t, "Failed", phase(op))
	require.Equal(t, "IgnitionNotDeliverable", reason(op))
	require.Equal(t, "2 of 3 hosts were replaced; the targets say more", message(op))
	for i, want := range [][]any{{"-a", "img-a", "CloudInit", "Complete", 1}, {"-b", "img-b", "Ignition", "Failed", 0}, {"-c", "img-c", "CloudInit", "Complete", 1}} {
		target := targetOf(t, op, i)
		input := target["input"].(map[string]any)
		require.Equal(t, want, []any{strings.TrimPrefix(target["machineRef"].(string), rack), input["hostImage"], input["provisioningFormat"], target["phase"],
			calls(t, ours, op, target["machineRef"].(string)).DestructiveCalls})
	}

	t.Run("one that is stopped makes no further call", func(t *testing.T) {
		r, dir := newReconciler(t, func(live ctrlclient.Reader) ctrlclient.Reader { return live })
		rack := uniqueName()
		for _, suffix := range []string{"-a", "-b", "-c"} {
			u := object(t, "machines", rack+suffix, "spec: {host: {image: img-a, provisioningFormat: CloudInit, external: {provider: Stopper}}}")
			u.SetLabels(map[string]string{"rack": rack})
			store(t, c, "machines", u)
		}
		name := uniqueName()
		created, err := c.of("machineoperations").Create(t.Context(), object(t, "machineoperations", name, "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: "+rack+"}}}"), metav1.CreateOptions{})
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
		require.Contains(t, []string{"VersionNotFound", "OtherOperation"}, reason(op), message(op))
		require.NotContains(t, op.Object["status"], "targets")
	})
}

// A read that fails is tried again; it is never taken for "not found".
func TestReadsThatFail(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	machine := uniqueName()
	v := object(t, "machineconfigurationversions", machine+"-v1", "spec: {version: 1, template: {host: {image: img-t, provisioningFormat: CloudInit}}}")
	v.SetLabels(map[string]string{v1alpha3.ConfigurationLabel: machine})
	store(t, c, "machineconfigurationversions", v)
	store(t, c, "machines", object(t, "machines", machine, "spec: {"+host("")+", configurationRef: {name: "+machine+", version: 1}}"))
	reads := map[string]int{}
	r, _ := newReconciler(t, func(live ctrlclient.Reader) ctrlclient.Reader {
		return reader{Reader: live, get: func(_ context.Context, _ ctrlclient.ObjectKey, o ctrlclient.Object) (bool, error) {
			kind := fmt.Sprintf("%T", o)
			if reads[kind]++; reads[kind] <= 3 {
				return true, apierrors.NewInternalError(errors.New("boom"))
			}
			return false, nil
		}}
	})
	op := reconcileUntilFinished(t, c, r, newOperation(t, c, machine))
	require.Equal(t, "Complete", phase(op), message(op))
	require.Equal(t, "img-t", inputOf(t, op)["hostImage"])
	require.Len(t, reads, 3, "operation, Machine and version")
}

// An operation that another process froze, for a provider that this one lacks,
// is left to that process.
func TestAnotherProcessHasTheProvider(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	name := newOperation(t, c, newMachine(t, c))
	r, _ := newReconciler(t, func(live ctrlclient.Reader) ctrlclient.Reader { return live })
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
	_, err := r.Reconcile(t.Context(), request)
	require.NoError(t, err)
	frozen := get(t, c, "machineoperations", name)
	require.NotEmpty(t, inputOf(t, frozen))
	other, _ := newReconciler(t, func(live ctrlclient.Reader) ctrlclient.Reader { return live })
	other.Providers = map[string]operation.Provider{"Elsewhere": other.Providers[simulated.Name]}
	_, err = other.Reconcile(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, frozen, get(t, c, "machineoperations", name))
	require.Equal(t, "Complete", phase(reconcileUntilFinished(t, c, r, name)))
}

// stopper is a provider during whose calls something else happens.
type stopper struct {
	operation.Provider
	meanwhile func()
}

func (s stopper) Replace(ctx context.Context, r operation.Replacement) (string, error) {
	defer s.meanwhile()
	return s.Provider.Replace(ctx, r)
}

// An operation that nobody began for long is not begun late.
func TestTooOld(t *testing.T) {
	needsLocal(t)
	c := newClient(t, ours)
	name := newOperation(t, c, newMachine(t, c))
	r, _ := newReconciler(t, func(live ctrlclient.Reader) ctrlclient.Reader { return live })
	r.Clock = clocktesting.NewFakePassiveClock(time.Now().Add(2 * time.Hour))
	op := reconcileUntilFinished(t, c, r, name)
	require.Equal(t, "TooOld", reason(op))
	require.NotContains(t, op.Object["status"], "targets")
}
