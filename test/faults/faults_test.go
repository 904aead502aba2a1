// Package faults breaks a local cluster while writers write, and holds each of
// their answers, and all that is stored, to the rules. The CRDs are those of
// somebody else, which enforce nothing: what is right is so because of the
// webhook alone.
package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/test/local"
)

const (
	patience, interval = 2 * time.Minute, 50 * time.Millisecond
	// outage is how long something is away, or bad.
	outage = 3 * time.Second
)

// testbed is a cluster of a test's own, and how to measure its webhook.
type testbed struct {
	*local.Cluster
	client  *rest.RESTClient
	metrics string
	args    []string // of the webhook
}

// newTestbed starts a cluster whose API server has more flags.
func newTestbed(t *testing.T, apiServer map[string]string) *testbed {
	t.Helper()
	logf.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	log := &local.Log{}
	t.Cleanup(func() {
		if t.Failed() {
			text := log.String()
			t.Log(text[max(0, len(text)-20_000):])
		}
	})
	metrics, err := local.FreeAddress()
	require.NoError(t, err)
	b := &testbed{metrics: metrics, args: []string{"--metrics-bind-address", metrics}}
	b.Cluster, err = local.Start(ctx, local.Options{CRDs: filepath.Join("..", "e2e", "testdata", "foreign-crds"), Args: b.args, APIServer: apiServer, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Stop()) })
	b.client, err = newClient(b.Config)
	require.NoError(t, err)
	return b
}

// TestFaults breaks one thing after the other under load. Whatever breaks, no
// answer is wrong, nothing that was acknowledged is lost, nothing is stored that
// was refused, and all heals once the fault is over.
func TestFaults(t *testing.T) {
	b := newTestbed(t, nil)
	for _, fault := range []struct {
		name string
		// begin breaks something, and mend makes it whole again.
		begin func(t *testing.T)
		mend  func(t *testing.T)
		// harmless faults are not noticed by any write.
		harmless bool
	}{
		{name: "webhook killed",
			begin: func(t *testing.T) { require.NoError(t, b.KillWebhook()) },
			mend:  func(t *testing.T) { require.NoError(t, b.StartWebhook(t.Context(), b.args...)) }},
		{name: "API server stopped", begin: b.stop(local.APIServer), mend: b.start(local.APIServer)},
		{name: "API server killed", begin: b.kill(local.APIServer), mend: b.start(local.APIServer)},
		{name: "etcd stopped", begin: b.stop(local.Etcd), mend: b.start(local.Etcd)},
		{name: "etcd killed", begin: b.kill(local.Etcd), mend: b.start(local.Etcd)},
		{name: "certificate replaced", begin: b.renewCertificates, mend: func(*testing.T) {}, harmless: true},
	} {
		t.Run(fault.name, func(t *testing.T) {
			l := startLoad(t, b.client)
			before := b.measure(t)
			fault.begin(t)
			<-time.After(outage) // not a wait for something, but the outage itself
			mended := time.Now()
			fault.mend(t)
			healed := l.healed(t, mended)
			b.settled(t, before)
			l.report(t, fault.name, healed)
			if fault.harmless {
				require.Zero(t, l.count[closed]+l.count[unclear])
			}
		})
	}
	t.Run("bad network", func(t *testing.T) {
		p := startProxy(t, b.Cluster)
		t.Cleanup(func() { require.NoError(t, b.InstallWebhook(context.Background())) })
		l := startLoad(t, b.client)
		before := b.measure(t)
		p.bad.Store(true)
		p.slow.Store(true)
		// What is open already would never be closed.
		require.Eventually(t, func() bool { p.closeAll(); return p.accepted.Load() > 0 }, patience, interval)
		require.Eventually(t, func() bool { return p.dropped.Load() >= 10 }, patience, interval)
		p.bad.Store(false)
		p.slow.Store(false)
		healed := l.healed(t, time.Now())
		b.settled(t, before)
		l.report(t, "bad network", healed)
		fmt.Printf("faults: bad network: %d connections, of which %d were dropped and %d cut\n", p.accepted.Load(), p.dropped.Load(), p.cut.Load())
	})
}

func (b *testbed) stop(program string) func(*testing.T) {
	return func(t *testing.T) { require.NoError(t, b.StopProgram(program)) }
}

func (b *testbed) kill(program string) func(*testing.T) {
	return func(t *testing.T) { require.NoError(t, b.KillProgram(program)) }
}

func (b *testbed) start(program string) func(*testing.T) {
	return func(t *testing.T) { require.NoError(t, b.StartProgram(program)) }
}

// renewCertificates replaces the serving pair ten times, each time until a new
// connection is served the new one. Every handshake is one that the API server
// would trust.
func (b *testbed) renewCertificates(t *testing.T) {
	config := b.ClientConfig("/")
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(config.CABundle))
	to, err := url.Parse(*config.URL)
	require.NoError(t, err)
	shown := func() (string, error) {
		conn, err := tls.Dial("tcp", to.Host, &tls.Config{RootCAs: roots})
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
	}
	for range 10 {
		old, err := shown()
		require.NoError(t, err)
		require.NoError(t, b.RenewCertificate())
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			now, err := shown()
			assert.NoError(t, err, "no handshake may fail")
			assert.NotEqual(c, old, now)
		}, patience, interval)
	}
}

// report ends the load, reads back what it stored and says what came of it.
func (l *load) report(t *testing.T, name string, healed time.Duration) {
	t.Helper()
	l.end()
	var lost, damaged []string
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		lost, damaged, err = l.readBack(t.Context(), l.client, l.label)
		assert.NoError(c, err)
	}, patience, interval)
	fmt.Printf("faults: %s: %s lost=%d damaged=%d healed in %s\n", name, l.count, len(lost), len(damaged), healed.Round(10*time.Millisecond))
	require.Empty(t, l.wrong, "wrong answers")
	require.Empty(t, lost)
	require.Empty(t, damaged)
}
