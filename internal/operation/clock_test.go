package operation

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// forgetful replaces a host at every call that it accepts: it ignores keys.
type forgetful struct {
	refuse, lose bool // the first call: it is not accepted, or its answer is lost
	calls, acts  int
}

func (p *forgetful) Replace(context.Context, Replacement) (string, error) {
	p.calls++
	if p.refuse && p.calls == 1 {
		return "", errors.New("not now")
	}
	p.acts++
	if p.lose && p.calls == 1 {
		return "", errors.New("the answer is lost")
	}
	return "job", nil
}

func (p *forgetful) Lookup(context.Context, string) (string, bool, error) {
	return "job", p.acts > 0, nil
}

func (p *forgetful) Poll(context.Context, string) (Progress, error) {
	return Progress{State: Succeeded}, nil
}

// The clock is set hours forward or back, and corrected again, before each step after
// the freeze: the host is replaced once, no started operation is too old, and none
// waits for hours.
func TestClockSteps(t *testing.T) {
	began := time.Unix(1_800_000_000, 0)
	for name, provider := range map[string]forgetful{
		"accepted": {}, "refused once": {refuse: true}, "answer lost": {lose: true},
	} {
		for _, by := range []time.Duration{5 * time.Hour, -5 * time.Hour} {
			for _, lasting := range []bool{true, false} {
				for at := 1; at <= 6; at++ {
					t.Run(fmt.Sprintf("%s, set by %s before step %d, lasting: %t", name, by, at, lasting), func(t *testing.T) {
						provider := provider
						clock := clocktesting.NewFakePassiveClock(began)
						r := reconcilerFor(t, began, clock, &provider)
						var waited time.Duration
						for step := range 20 {
							switch {
							case step == at:
								clock.SetTime(clock.Now().Add(by))
							case step == at+1 && !lasting:
								clock.SetTime(clock.Now().Add(-by))
							}
							waited += r.step(t)
							if step == 0 {
								op, err := r.read(t.Context(), "op")
								require.NoError(t, err)
								require.True(t, resolve.Frozen(op.MachineOperation), "%+v", op.Status)
							}
						}
						op, err := r.read(t.Context(), "op")
						require.NoError(t, err)
						require.Equal(t, v1alpha3.OperationComplete, op.Status.Phase, op.Status.Message)
						require.Equal(t, 1, provider.acts)
						require.Equal(t, "img-a", op.Status.Targets[0].Input.HostImage)
						require.Less(t, waited, 10*time.Minute)
					})
				}
			}
		}
	}
}

// Before the freeze, a clock that is fast by more than an hour makes an operation too
// old, and no provider is called. A slow clock does no harm.
func TestClockIsWrongFromTheStart(t *testing.T) {
	began := time.Unix(1_800_000_000, 0)
	for by, want := range map[time.Duration]string{5 * time.Hour: "TooOld", -5 * time.Hour: "Replaced"} {
		provider := forgetful{}
		r := reconcilerFor(t, began, clocktesting.NewFakePassiveClock(began.Add(by)), &provider)
		for range 10 {
			r.step(t)
		}
		op, err := r.read(t.Context(), "op")
		require.NoError(t, err)
		require.Equal(t, want, reasonFor(op), op.Status.Message)
		require.Equal(t, want == "Replaced", provider.acts == 1)
	}
}

func reasonFor(op *record) string {
	for _, condition := range op.Status.Conditions {
		if condition.Type == v1alpha3.ConditionComplete {
			return condition.Reason
		}
	}
	return ""
}

// noHosts is an index for a fleet in which no two Machines name one host.
type noHosts struct{}

func (noHosts) HasSynced() bool                  { return true }
func (noHosts) Naming(string, string) []string   { return nil }
func (noHosts) ProviderOf(string) (string, bool) { return "", false }

// driven is a reconciler of one operation that a test drives step by step. Its calls
// return before the reconcile does.
type driven struct {
	*Reconciler
	clock *clocktesting.FakePassiveClock
	asked time.Duration // when an answer wants to be recorded; 0 for none
}

// step reconciles once, sets the clock to when the next reconcile is due, and returns
// how long that is.
func (d *driven) step(t *testing.T) time.Duration {
	t.Helper()
	d.asked = 0
	result, err := d.Reconcile(t.Context(), requestFor("op"))
	require.NoError(t, err)
	wait := earliest(result.RequeueAfter, d.asked)
	d.clock.SetTime(d.clock.Now().Add(wait))
	return wait
}

// reconcilerFor returns a reconciler with an API server in memory that has a Machine
// and an operation on it.
func reconcilerFor(t *testing.T, began time.Time, clock *clocktesting.FakePassiveClock, provider Provider) *driven {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha3.AddToScheme(scheme))
	require.NoError(t, coordinationv1.AddToScheme(scheme))
	machine := &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "m-1", CreationTimestamp: metav1.NewTime(began.Add(-time.Hour))}}
	machine.Spec.Host = &v1alpha3.MachineHost{HostTemplate: v1alpha3.HostTemplate{Image: "img-a", ProvisioningFormat: v1alpha3.CloudInit}, External: &v1alpha3.ExternalHost{Provider: "P"}}
	op := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha3.GroupVersion.String(), "kind": "MachineOperation",
		"metadata": map[string]any{"name": "op", "uid": "u-1", "creationTimestamp": began.UTC().Format(time.RFC3339)},
		"spec":     map[string]any{"operationKind": "HostReplace", "machineRef": "worker-1"},
	}}
	userData, err := NewUserData(nil)
	require.NoError(t, err)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(machine, op).
		WithStatusSubresource(op).Build()
	calls := NewCalls(CallOptions{Clock: clock, Timeout: time.Minute, PerProvider: 10})
	d := &driven{clock: clock, Reconciler: &Reconciler{
		Live: c, Cache: c, Hosts: noHosts{}, Writer: c, Calls: calls, ClaimNamespace: "claims", Providers: map[string]Provider{"P": provider}, UserData: userData,
		Recorder: events.NewFakeRecorder(1000), Clock: clock, Backoff: Backoff{Base: time.Second, Cap: 5 * time.Minute}, PollInterval: time.Second,
	}}
	calls.spawn = func(call func()) { call() }
	calls.notify(func(_ string, after time.Duration) { d.asked = max(after, 1) })
	return d
}
