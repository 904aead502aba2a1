package e2e

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	hostcontrollers "unbounded-cloud.io/hostformat/internal/controllers"
	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// quick is a provider that accepts and replaces at once, unless it hangs: then no call
// of it returns, whatever its context says, until hangs is closed.
type quick struct{ hangs chan struct{} }

func (p *quick) wait() {
	if p.hangs != nil {
		<-p.hangs
	}
}

func (p *quick) Replace(_ context.Context, r operation.Replacement) (string, error) {
	p.wait()
	return r.Key, nil
}

func (p *quick) Lookup(_ context.Context, key string) (string, bool, error) { return key, true, nil }

func (p *quick) Poll(context.Context, string) (operation.Progress, error) {
	return operation.Progress{State: operation.Succeeded}, nil
}

// With a provider that hangs, for more targets than its pool has slots, the targets of
// another provider are replaced in about the same time. Rounds with and without it
// alternate, in one manager on a real API server. Afterwards nothing is left of it.
func TestHangingProviderDelaysNobody(t *testing.T) {
	needsLocal(t)
	if os.Getenv("HOSTFORMAT_PROOF") == "" {
		t.Skip("part of make proof; TestProviderThatHangs in internal/operation needs no real time")
	}
	ours := ourCRDs.take(t)
	c := newClient(t, ours)
	const rounds = 15
	hanging := &quick{}
	userData, err := operation.NewUserData(nil)
	require.NoError(t, err)
	api := rest.CopyConfig(ours.Config)
	api.QPS = -1
	set := hostcontrollers.New(api, hostcontrollers.Config{
		Names: []string{operation.ControllerName}, Concurrency: 4, CallTimeout: 2 * time.Minute, CallsPerProvider: 10, ClaimNamespace: resolve.DefaultClaimNamespace,
		Providers: map[string]operation.Provider{"Hanging": hanging, "Other": &quick{}}, UserData: userData,
	})
	options, err := set.ManagerOptions()
	require.NoError(t, err)
	options.Logger, options.Metrics = logr.Discard(), metricsserver.Options{BindAddress: "0"}
	options.Controller.SkipNameValidation = new(true)
	mgr, err := ctrl.NewManager(api, options)
	require.NoError(t, err)
	require.NoError(t, set.AddTo(mgr))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.NoError(collect, set.Ready(nil)) }, patience, interval)

	create := func(provider string) string {
		rack := uniqueName()
		for i := range 20 {
			u := object(t, "machines", fmt.Sprintf("%s-%d", rack, i), "spec: {host: {image: img-a, provisioningFormat: CloudInit, external: {provider: "+provider+"}}}")
			u.SetLabels(map[string]string{"rack": rack})
			store(t, c, "machines", u)
		}
		return createOperation(t, c, uniqueName(), "parameters: {maxInFlight: '20'}, machineSelector: {matchLabels: {rack: "+rack+"}}").GetName()
	}
	once := func() time.Duration {
		began := time.Now()
		op := create("Other")
		created := time.Since(began) // the work of this test
		done := finished(t, c, op)
		require.Equal(t, "Complete", phase(done), message(done))
		return time.Since(began) - created
	}
	once() // connections and caches are warm
	goroutines := runtime.NumGoroutine()
	var without, with []time.Duration
	for range rounds {
		without = append(without, once())

		hanging.hangs = make(chan struct{})
		stuck := create("Hanging")
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			attempted := 0
			for _, target := range targetsOf(get(collect, c, "machineoperations", stuck)) {
				if target.(map[string]any)["attempts"] != nil {
					attempted++
				}
			}
			assert.Equal(collect, 10, attempted, "the pool is full")
		}, patience, interval)
		with = append(with, once())
		close(hanging.hangs)
		require.Equal(t, "Complete", phase(finished(t, c, stuck)))
	}
	ratio := float64(median(with)) / float64(median(without))
	fmt.Printf("hanging: 20 targets of another provider in %s, and in %s beside a provider that hangs: %.2f times as long, over %d rounds\n",
		median(without).Round(time.Millisecond), median(with).Round(time.Millisecond), ratio, rounds)
	require.LessOrEqual(t, ratio, 1.1)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+5 }, patience, interval, "beside those of this check and of connections")
}

func median(of []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(of))[len(of)/2]
}
