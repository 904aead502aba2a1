package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
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
	"unbounded-cloud.io/hostformat/internal/resolve"
)

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

// noHosts is an index for a fleet in which no two Machines name one host.
type noHosts struct{}

func (noHosts) HasSynced() bool                  { return true }
func (noHosts) Naming(string, string) []string   { return nil }
func (noHosts) ProviderOf(string) (string, bool) { return "", false }

func newReconciler(t *testing.T, c client, live func(ctrlclient.Reader) ctrlclient.Reader) (*operation.Reconciler, string) {
	t.Helper()
	s := runtime.NewScheme()
	require.NoError(t, v1alpha3.AddToScheme(s))
	require.NoError(t, coordinationv1.AddToScheme(s))
	writer, err := ctrlclient.New(c.cluster.Config, ctrlclient.Options{Scheme: s})
	require.NoError(t, err)
	userData, err := operation.NewUserData(nil)
	require.NoError(t, err)
	dir := t.TempDir()
	return &operation.Reconciler{
		Live: live(writer), Cache: writer, Hosts: noHosts{}, Writer: writer, ClaimNamespace: resolve.DefaultClaimNamespace, Recorder: &events.FakeRecorder{},
		Providers: map[string]operation.Provider{simulated.Name: &simulated.Provider{Options: simulated.Options{ForgetKeys: true}, Store: &simulated.DirStore{Dir: dir}}},
		Calls:     operation.NewCalls(operation.CallOptions{Clock: clock.RealClock{}, Timeout: time.Minute, PerProvider: 10}),
		UserData:  userData, Clock: clock.RealClock{}, Backoff: operation.Backoff{Base: time.Millisecond, Cap: time.Millisecond}, PollInterval: time.Millisecond,
	}, dir
}

// reconcileUntilFinished drives a reconciler by hand. Errors are tried again.
func reconcileUntilFinished(t *testing.T, c client, r *operation.Reconciler, name string) (op *unstructured.Unstructured) {
	t.Helper()
	reconcileUntil(t, r, name, func() bool {
		op = get(t, c, "machineoperations", name)
		return phase(op) == "Complete" || phase(op) == "Failed"
	})
	return op
}

// reconcileUntil drives a reconciler by hand until done. Its calls run beside it.
func reconcileUntil(t *testing.T, r *operation.Reconciler, name string, done func() bool) {
	t.Helper()
	var last error
	next := time.NewTicker(5 * time.Millisecond) // not at once, or it would take the CPU from what it waits for
	defer next.Stop()
	for deadline := time.Now().Add(time.Minute); !done(); <-next.C {
		require.True(t, time.Now().Before(deadline), "no end: %v", last)
		_, last = r.Reconcile(t.Context(), requestFor(name))
	}
}

// returned waits until all calls of providers have returned.
func returned(t *testing.T, r *operation.Reconciler) {
	t.Helper()
	require.Eventually(t, func() bool { return r.Calls.Outstanding() == 0 }, patience, interval)
}

// oneAfterTheOther makes a reconciler call providers once at a time.
func oneAfterTheOther(r *operation.Reconciler) {
	r.Calls = operation.NewCalls(operation.CallOptions{Clock: clock.RealClock{}, Timeout: time.Minute, PerProvider: 1})
}

// The list of versions changes between any two reads: image and format come
// from one and the same version all the same.
func TestVersionsAreReadOnce(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
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
	r, _ := newReconciler(t, c, func(live ctrlclient.Reader) ctrlclient.Reader {
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
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	machine := newMachine(t, c)
	name := newOperation(t, c, machine)
	var mu sync.Mutex
	var seen []*unstructured.Unstructured // every state that was there, oldest first
	reads := 0
	r, dir := newReconciler(t, c, func(live ctrlclient.Reader) ctrlclient.Reader {
		return reader{Reader: live, get: func(ctx context.Context, key ctrlclient.ObjectKey, o ctrlclient.Object) (bool, error) {
			u, ok := o.(*unstructured.Unstructured)
			if !ok || key.Name != name {
				return false, nil
			}
			fresh := u.DeepCopy()
			if err := live.Get(ctx, key, fresh); err != nil {
				return true, err
			}
			mu.Lock()
			defer mu.Unlock()
			if len(seen) == 0 || seen[len(seen)-1].GetResourceVersion() != fresh.GetResourceVersion() {
				seen = append(seen, fresh)
			}
			// Five reads in six are of an older state, each in turn.
			reads++
			seen[max(0, len(seen)-1-reads%6)].DeepCopyInto(u)
			return true, nil
		}}
	})
	op := reconcileUntilFinished(t, c, r, name)
	require.Equal(t, "Complete", phase(op), message(op))
	for range 12 {
		_, _ = r.Reconcile(t.Context(), requestFor(name))
	}
	returned(t, r)
	record, err := (&simulated.DirStore{Dir: dir}).Get(t.Context(), simulated.ID(string(op.GetUID())+"/"+machine))
	require.NoError(t, err)
	require.Equal(t, 1, record.DestructiveCalls)
	require.Equal(t, op.Object["status"], get(t, c, "machineoperations", name).Object["status"])
}

// A read that fails is tried again; it is never taken for "not found".
func TestReadsThatFail(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	machine := uniqueName()
	v := object(t, "machineconfigurationversions", machine+"-v1", "spec: {version: 1, template: {host: {image: img-t, provisioningFormat: CloudInit}}}")
	v.SetLabels(map[string]string{v1alpha3.ConfigurationLabel: machine})
	store(t, c, "machineconfigurationversions", v)
	store(t, c, "machines", object(t, "machines", machine, "spec: {"+host("")+", configurationRef: {name: "+machine+", version: 1}}"))
	var mu sync.Mutex
	reads := map[string]int{}
	r, _ := newReconciler(t, c, func(live ctrlclient.Reader) ctrlclient.Reader {
		return reader{Reader: live, get: func(_ context.Context, _ ctrlclient.ObjectKey, o ctrlclient.Object) (bool, error) {
			kind := fmt.Sprintf("%T", o)
			mu.Lock()
			defer mu.Unlock()
			if reads[kind]++; reads[kind] <= 3 {
				return true, apierrors.NewInternalError(errors.New("boom"))
			}
			return false, nil
		}}
	})
	op := reconcileUntilFinished(t, c, r, newOperation(t, c, machine))
	require.Equal(t, "Complete", phase(op), message(op))
	require.Equal(t, "img-t", inputOf(t, op)["hostImage"])
	require.Len(t, reads, 5, "operation, also its metadata alone, Machine, version and claim")
}

// An operation that another process froze, for a provider that this one lacks,
// is left to that process.
func TestAnotherProcessHasTheProvider(t *testing.T) {
	needsLocal(t)
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	name := newOperation(t, c, newMachine(t, c))
	r, _ := newReconciler(t, c, func(live ctrlclient.Reader) ctrlclient.Reader { return live })
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
	_, err := r.Reconcile(t.Context(), request)
	require.NoError(t, err)
	frozen := get(t, c, "machineoperations", name)
	require.NotEmpty(t, inputOf(t, frozen))
	other, _ := newReconciler(t, c, func(live ctrlclient.Reader) ctrlclient.Reader { return live })
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
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	name := newOperation(t, c, newMachine(t, c))
	r, _ := newReconciler(t, c, func(live ctrlclient.Reader) ctrlclient.Reader { return live })
	r.Clock = clocktesting.NewFakePassiveClock(time.Now().Add(2 * time.Hour))
	op := reconcileUntilFinished(t, c, r, name)
	require.Equal(t, "TooOld", reason(op))
	require.NotContains(t, op.Object["status"], "targets")
}
