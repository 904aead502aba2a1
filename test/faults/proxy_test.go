package faults

import (
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/test/local"
)

// What a bad network does to connections.
const (
	delayEach = 200 * time.Millisecond // to what is sent, each way
	dropEvery = 5                      // closed as soon as it is opened
	cutAfter  = 2 * time.Second        // all others, whatever they carry
)

// proxy stands between the API server and the webhook.
type proxy struct {
	listener net.Listener
	target   string
	// bad makes it a bad network; slow delays what is sent, too.
	bad, slow              atomic.Bool
	accepted, dropped, cut atomic.Int64

	group sync.WaitGroup
	mu    sync.Mutex
	open  map[net.Conn]bool
}

// startProxy has the API server reach the webhook through a proxy, until the
// test ends.
func startProxy(t *testing.T, cluster *local.Cluster) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, open: map[net.Conn]bool{}}
	mutating, validating, err := cluster.WebhookConfigurations()
	require.NoError(t, err)
	for i := range mutating.Webhooks {
		p.lead(t, &mutating.Webhooks[i].ClientConfig)
	}
	for i := range validating.Webhooks {
		p.lead(t, &validating.Webhooks[i].ClientConfig)
	}
	p.group.Go(p.serve)
	t.Cleanup(func() {
		listener.Close()
		p.closeAll()
		p.group.Wait()
	})
	for _, object := range []any{mutating, validating} {
		text, err := yaml.Marshal(object)
		require.NoError(t, err)
		out, err := cluster.Kubectl(t.Context(), text, "apply", "--server-side", "--field-manager=hostformat", "-f", "-")
		require.NoError(t, err, out)
	}
	return p
}

// lead leads a client of the webhook to the proxy.
func (p *proxy) lead(t *testing.T, config *admissionregistrationv1.WebhookClientConfig) {
	t.Helper()
	to, err := url.Parse(*config.URL)
	require.NoError(t, err)
	p.target, to.Host = to.Host, p.listener.Addr().String()
	through := to.String()
	config.URL = &through
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		n := p.accepted.Add(1)
		if p.bad.Load() && n%dropEvery == 0 {
			p.dropped.Add(1)
			client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.pass(client, server)
	}
}

// pass lets two connections talk, until one of them ends.
func (p *proxy) pass(client, server net.Conn) {
	p.mu.Lock()
	p.open[client], p.open[server] = true, true
	p.mu.Unlock()
	end := sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range []net.Conn{client, server} {
			c.Close()
			delete(p.open, c)
		}
	})
	cut := time.AfterFunc(cutAfter, func() {
		if p.bad.Load() {
			p.cut.Add(1)
			end()
		}
	})
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		p.group.Go(func() {
			defer cut.Stop()
			defer end()
			p.pump(to, from)
		})
	}
}

func (p *proxy) pump(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if p.slow.Load() {
			<-time.After(delayEach) // not a wait for something, but the delay itself
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.Close()
	}
}
