package operation

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// testFleet is an API server in memory with a reconciler whose calls run beside the
// reconciles, as they do in a controller. Its clock only moves when the test says so.
type testFleet struct {
	*Reconciler
	t      *testing.T
	clock  *clocktesting.FakePassiveClock
	client client.Client
	events *events.FakeRecorder

	mu         sync.Mutex
	unreadable map[string]bool // Machines
}

func newTestFleet(t *testing.T, providers map[string]Provider) *testFleet {
	t.Helper()
	scheme := apiruntime.NewScheme()
	require.NoError(t, v1alpha3.AddToScheme(scheme))
	require.NoError(t, coordinationv1.AddToScheme(scheme))
	f := &testFleet{t: t, clock: clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0)), events: events.NewFakeRecorder(10_000), unreadable: map[string]bool{}}
	f.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha3.MachineOperation{}).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, how ...client.GetOption) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.unreadable[key.Name] {
				return errors.New("etcdserver: request timed out")
			}
			return c.Get(ctx, key, object, how...)
		}}).Build()
	userData, err := NewUserData(nil)
	require.NoError(t, err)
	f.Reconciler = &Reconciler{
		Live: f.client, Cache: f.client, Hosts: noHosts{}, Writer: f.client, ClaimNamespace: "claims", Providers: providers, UserData: userData,
		Calls:    NewCalls(CallOptions{Clock: f.clock, Timeout: time.Minute, PerProvider: 4}),
		Recorder: f.events, Clock: f.clock, Backoff: Backoff{Base: time.Second, Cap: 5 * time.Minute}, PollInterval: time.Second,
	}
	return f
}

// create creates Machines NAME-1 and so on of a provider, and an operation NAME on them.
func (f *testFleet) create(name, provider string, machines int) {
	f.t.Helper()
	before := metav1.NewTime(f.clock.Now().Add(-time.Hour))
	for i := range machines {
		machine := &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", name, i+1), UID: types.UID(fmt.Sprintf("m-%s-%d", name, i+1)), Labels: map[string]string{"rack": name}, CreationTimestamp: before}}
		machine.Spec.Host = &v1alpha3.MachineHost{HostTemplate: v1alpha3.HostTemplate{Image: "img-a", ProvisioningFormat: v1alpha3.CloudInit}, External: &v1alpha3.ExternalHost{Provider: provider}}
		require.NoError(f.t, f.client.Create(f.t.Context(), machine))
	}
	op := &v1alpha3.MachineOperation{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("u-" + name), CreationTimestamp: metav1.NewTime(f.clock.Now())}}
	op.Spec = v1alpha3.MachineOperationSpec{OperationKind: v1alpha3.HostReplace, MachineSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": name}},
		Parameters: map[string]string{"maxInFlight": "100"}}
	require.NoError(f.t, f.client.Create(f.t.Context(), op))
}

// step reconciles operations once each, and moves the clock by a second.
func (f *testFleet) step(operations ...string) {
	f.t.Helper()
	for _, name := range operations {
		_, err := f.Reconcile(f.t.Context(), requestFor(name))
		require.NoError(f.t, err)
	}
	f.clock.SetTime(f.clock.Now().Add(time.Second))
}

// until takes steps until done, and returns how many.
func (f *testFleet) until(done func() bool, operations ...string) (steps int) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		f.step(operations...)
		steps++
		return done()
	}, 30*time.Second, time.Millisecond)
	return steps
}

func (f *testFleet) operation(name string) *v1alpha3.MachineOperation {
	f.t.Helper()
	op := &v1alpha3.MachineOperation{}
	require.NoError(f.t, f.client.Get(f.t.Context(), types.NamespacedName{Name: name}, op))
	return op
}

// replaced counts the targets of operations that are complete.
func (f *testFleet) replaced(operations ...string) (n int) {
	f.t.Helper()
	for _, name := range operations {
		for _, target := range f.operation(name).Status.Targets {
			if target.Phase == v1alpha3.OperationComplete {
				n++
			}
		}
	}
	return n
}

// stalled returns the condition Stalled, empty if it is not set.
func (f *testFleet) stalled(name string) metav1.Condition {
	f.t.Helper()
	if condition := meta.FindStatusCondition(f.operation(name).Status.Conditions, v1alpha3.ConditionStalled); condition != nil {
		return *condition
	}
	return metav1.Condition{}
}

// warnings counts the Events with a reason.
func (f *testFleet) warnings(reason resolve.Reason) (n int) {
	for {
		select {
		case event := <-f.events.Events:
			if strings.HasPrefix(event, "Warning "+string(reason)) {
				n++
			}
		default:
			return n
		}
	}
}

// recorder is a provider that remembers keys, counts its calls, and can be made to hang
// or to fail.
type recorder struct {
	hangs    chan struct{} // a call of hangsAt hangs until this is closed, whatever its context says
	hangsAt  method
	machines []string // empty for all

	mu       sync.Mutex
	failing  error          // of every poll
	calls    map[string]int // by method and Machine, and by method
	acts     map[string]int // by key
	inFlight map[string]int // calls that have not returned, by key
	twice    bool           // a key was called while a call of it had not returned
}

func newRecorder() *recorder {
	return &recorder{calls: map[string]int{}, acts: map[string]int{}, inFlight: map[string]int{}}
}

func (p *recorder) enter(m method, key string) error {
	machine := key[strings.LastIndex(key, "/")+1:]
	p.mu.Lock()
	p.calls[fmt.Sprint(m, machine)]++
	p.calls[fmt.Sprint(m)]++
	p.inFlight[key]++
	p.twice = p.twice || p.inFlight[key] > 1
	hang := p.hangs != nil && p.hangsAt == m && (len(p.machines) == 0 || slices.Contains(p.machines, machine))
	p.mu.Unlock()
	if hang {
		<-p.hangs
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight[key]--
	if m == polling {
		return p.failing
	}
	if m == replacing && p.acts[key] == 0 {
		p.acts[key]++
	}
	return nil
}

func (p *recorder) Replace(_ context.Context, r Replacement) (string, error) {
	return r.Key, p.enter(replacing, r.Key)
}

func (p *recorder) Lookup(_ context.Context, key string) (string, bool, error) {
	err := p.enter(lookingUp, key)
	p.mu.Lock()
	defer p.mu.Unlock()
	return key, p.acts[key] > 0, err
}

func (p *recorder) Poll(_ context.Context, id string) (Progress, error) {
	return Progress{State: Succeeded}, p.enter(polling, id)
}

// failPolls makes every poll fail, or none with nil.
func (p *recorder) failPolls(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = err
}

func (p *recorder) counted(what ...any) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[fmt.Sprint(what...)]
}

// goroutines returns a check that there are no more than now.
func goroutines(t *testing.T) func() {
	before := runtime.NumGoroutine()
	return func() {
		t.Helper()
		// Not Eventually, which needs a goroutine itself.
		for deadline := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
			require.True(t, time.Now().Before(deadline), "goroutines are left")
		}
	}
}

// A call for the second of three targets hangs: the others are replaced, the operation
// says what it waits for within five minutes, the key is not called again, and it goes on
// when the call returns.
func TestCallThatHangs(t *testing.T) {
	for hangsAt, words := range map[method]string{
		replacing: "attempt 1 was sent to the provider, which has not answered",
		polling:   "the provider was asked for the progress of the replacement, and has not answered",
	} {
		t.Run(words, func(t *testing.T) {
			settled := goroutines(t)
			p := newRecorder()
			p.hangs, p.hangsAt, p.machines = make(chan struct{}), hangsAt, []string{"op-2"}
			f := newTestFleet(t, map[string]Provider{"P": p})
			f.create("op", "P", 3)
			f.until(func() bool { return f.replaced("op") == 2 && p.counted(hangsAt, "op-2") == 1 }, "op")
			since := f.clock.Now()
			require.Equal(t, v1alpha3.OperationInProgress, f.operation("op").Status.Targets[1].Phase)
			require.Empty(t, f.stalled("op").Status)

			f.clock.SetTime(since.Add(stalledAfter))
			f.step("op")
			condition := f.stalled("op")
			require.Equal(t, metav1.ConditionTrue, condition.Status)
			require.Equal(t, string(resolve.ProviderNotAnswering), condition.Reason)
			require.Contains(t, condition.Message, `Machine "op-2": `+words)
			require.Contains(t, f.operation("op").Status.Targets[1].Message, words+" (since 2027-")
			for range 20 {
				f.clock.SetTime(f.clock.Now().Add(time.Minute))
				f.step("op")
			}
			require.Equal(t, 1, p.counted(hangsAt, "op-2"))
			require.Equal(t, 1, f.warnings(resolve.ProviderNotAnswering), "one Event")

			close(p.hangs)
			f.until(func() bool { return f.operation("op").Status.Phase == v1alpha3.OperationComplete }, "op")
			require.Equal(t, metav1.ConditionFalse, f.stalled("op").Status)
			require.Equal(t, string(resolve.Recovered), f.stalled("op").Reason)
			require.Len(t, p.acts, 3)
			for key, n := range p.acts {
				require.Equal(t, 1, n, key)
			}
			require.False(t, p.twice)
			require.Empty(t, f.Calls.targets)
			settled()
		})
	}
}

// Every poll fails with another text: the target says so at once, with the time of the
// first, and is written once a minute at most.
func TestPollsThatFail(t *testing.T) {
	p := newRecorder()
	f := newTestFleet(t, map[string]Provider{"P": p})
	f.create("op", "P", 1)
	p.failPolls(errors.New("the token has expired"))
	message := func() string {
		if targets := f.operation("op").Status.Targets; len(targets) == 1 {
			return targets[0].Message
		}
		return ""
	}
	f.until(func() bool { return strings.Contains(message(), "expired") }, "op")
	require.Regexp(t, `^the host is being replaced, but the provider does not report the progress; it is asked again \(since 2027-01-15T08:0\d:\d\dZ\): the token has expired$`, message())
	require.Empty(t, f.stalled("op").Status)

	messages, since := map[string]bool{}, f.clock.Now()
	f.until(func() bool {
		p.failPolls(fmt.Errorf("the token has expired (request %d)", p.counted(polling)))
		messages[message()] = true
		return f.clock.Now().Sub(since) > 10*time.Minute
	}, "op")
	require.LessOrEqual(t, len(messages), 12)
	require.Greater(t, len(messages), 1, "it says the latest error once in a while")
	require.Equal(t, string(resolve.ProviderFailing), f.stalled("op").Reason)
	require.Contains(t, f.stalled("op").Message, "the provider does not report the progress")
	require.Equal(t, 1, f.warnings(resolve.ProviderFailing))

	p.failPolls(nil)
	f.until(func() bool { return f.operation("op").Status.Phase == v1alpha3.OperationComplete }, "op")
	require.Equal(t, metav1.ConditionFalse, f.stalled("op").Status)
}

// A Machine that cannot be read delays no other target.
func TestMachineThatCannotBeRead(t *testing.T) {
	p := newRecorder()
	f := newTestFleet(t, map[string]Provider{"P": p})
	f.create("op", "P", 3)
	f.until(func() bool { return resolve.Marked(f.operation("op")) }, "op")
	read := func(may bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.unreadable["op-2"] = !may
	}
	read(false)
	require.LessOrEqual(t, f.until(func() bool { return f.replaced("op") == 2 }, "op"), 300)
	f.until(func() bool { return f.stalled("op").Status == metav1.ConditionTrue }, "op")
	require.Equal(t, string(resolve.MachineUnreadable), f.stalled("op").Reason)
	require.Contains(t, f.stalled("op").Message, `Machine "op-2": `)
	require.Contains(t, f.operation("op").Status.Targets[1].Message, "etcdserver: request timed out")
	require.Zero(t, p.counted(replacing, "op-2"))
	read(true)
	f.until(func() bool { return f.operation("op").Status.Phase == v1alpha3.OperationComplete }, "op")
	require.Equal(t, 1, p.counted(replacing, "op-2"))
	require.Equal(t, metav1.ConditionFalse, f.stalled("op").Status)
}

// A provider hangs forever, with fewer targets than its pool has slots, and with more:
// the targets of another provider are replaced all the same, each operation of the first
// says so within five minutes, and all of them go on when it answers.
func TestProviderThatHangs(t *testing.T) {
	for _, machines := range []int{1, 8} {
		for _, hangsAt := range []method{replacing, polling} {
			t.Run(fmt.Sprintf("%d targets, method %d", machines, hangsAt), func(t *testing.T) {
				settled := goroutines(t)
				hanging, other := newRecorder(), newRecorder()
				f := newTestFleet(t, map[string]Provider{"Hanging": hanging, "Other": other})
				stuck := []string{"hangs-a", "hangs-b"}
				for _, name := range stuck {
					f.create(name, "Hanging", machines)
				}
				hanging.hangs, hanging.hangsAt = make(chan struct{}), hangsAt
				f.until(func() bool { return hanging.counted(hangsAt) == min(2*machines, 4) }, stuck...)

				f.create("other", "Other", 9)
				f.until(func() bool { return f.replaced("other") == 9 }, append(stuck, "other")...)
				require.LessOrEqual(t, hanging.counted(hangsAt), 4, "the pool")
				f.clock.SetTime(f.clock.Now().Add(stalledAfter))
				f.step(stuck...)
				for _, name := range stuck {
					require.Equal(t, metav1.ConditionTrue, f.stalled(name).Status, name)
				}

				close(hanging.hangs)
				f.until(func() bool { return f.replaced(stuck...) == 2*machines }, stuck...)
				for _, name := range stuck {
					require.Equal(t, metav1.ConditionFalse, f.stalled(name).Status, name)
				}
				for _, p := range []*recorder{hanging, other} {
					require.False(t, p.twice)
					for key, n := range p.acts {
						require.Equal(t, 1, n, key)
					}
				}
				f.step(append(stuck, "other")...)
				require.Empty(t, f.Calls.targets)
				require.Zero(t, f.Calls.Outstanding())
				for name, p := range f.Calls.pools {
					require.Zero(t, p.used, name)
					require.Empty(t, p.waiting, name)
					require.Empty(t, p.granted, name)
				}
				settled()
			})
		}
	}
}

// A panic of a provider counts as no answer: the target is looked up and tried again.
func TestProviderThatPanics(t *testing.T) {
	p := panicking{recorder: newRecorder()}
	f := newTestFleet(t, map[string]Provider{"P": &p})
	f.create("op", "P", 1)
	f.until(func() bool { return f.operation("op").Status.Phase == v1alpha3.OperationComplete }, "op")
	require.Equal(t, 1, p.counted(replacing), "after the panic")
	require.Equal(t, 1, p.counted(lookingUp))
}

type panicking struct {
	*recorder
	once sync.Once
}

func (p *panicking) Replace(ctx context.Context, r Replacement) (string, error) {
	p.once.Do(func() { panic("a nil map") })
	return p.recorder.Replace(ctx, r)
}

// An operation that is stalled stays so when another process takes over, until that one
// has heard of every target.
func TestStalledOutlivesTheProcess(t *testing.T) {
	p := newRecorder()
	f := newTestFleet(t, map[string]Provider{"P": p})
	f.create("op", "P", 1)
	p.failPolls(errors.New("the token has expired"))
	f.until(func() bool { return f.stalled("op").Status == metav1.ConditionTrue }, "op")
	f.Calls = NewCalls(f.Calls.options)
	polls := p.counted(polling)
	f.until(func() bool { return p.counted(polling) > polls+1 }, "op")
	require.Equal(t, metav1.ConditionTrue, f.stalled("op").Status)
	require.Equal(t, 1, f.warnings(resolve.ProviderFailing), "one Event")
	p.failPolls(nil)
	f.until(func() bool { return f.operation("op").Status.Phase == v1alpha3.OperationComplete }, "op")
	require.Equal(t, metav1.ConditionFalse, f.stalled("op").Status)
}

// A process that is asked to end during a call waits for the answer, records it, and
// makes no further call.
func TestEndOfTheProcess(t *testing.T) {
	p := newRecorder()
	p.hangs, p.hangsAt = make(chan struct{}), replacing
	f := newTestFleet(t, map[string]Provider{"P": p})
	f.create("op", "P", 9)
	f.until(func() bool { return p.counted(replacing) == 4 }, "op")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.drain(ctx) }()
	cancel()
	require.Eventually(t, func() bool {
		f.Calls.mu.Lock()
		defer f.Calls.mu.Unlock()
		return f.Calls.closed
	}, 30*time.Second, time.Millisecond)
	select {
	case err := <-ended:
		require.Fail(t, "it ended before the calls", err)
	default:
	}
	close(p.hangs)
	require.NoError(t, <-ended)
	accepted := 0
	for _, target := range f.operation("op").Status.Targets {
		if target.Accepted() {
			accepted++
		} else {
			require.False(t, target.Begun(), target.MachineRef)
		}
	}
	require.Equal(t, 4, accepted)
	f.step("op")
	require.Equal(t, 4, p.counted(replacing))
	require.Zero(t, p.counted(lookingUp))
}
