package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/internal/admission"
)

// open opens TLS connections, sends the same text on each, and closes them when the
// test ends.
func (p *process) open(t *testing.T, count int, text string) []*tls.Conn {
	t.Helper()
	conns := make([]*tls.Conn, count)
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() {
			conn, err := p.dial(p.port, nil)
			if assert.NoError(t, err) {
				conns[i] = conn
				_, _ = io.WriteString(conn, text) // the server may have closed it
			}
		})
		if i%50 == 49 {
			all.Wait()
		}
	}
	all.Wait()
	require.NotContains(t, conns, (*tls.Conn)(nil))
	t.Cleanup(func() {
		for _, conn := range conns {
			conn.Close()
		}
	})
	return conns
}

// closed waits until the server closes each connection, and returns what it sent
// before.
func closed(t *testing.T, conns []*tls.Conn) []string {
	t.Helper()
	sent := make([]string, len(conns))
	for i, conn := range conns {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		text, err := io.ReadAll(conn)
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "connection %d is still open", i)
		sent[i] = string(text)
	}
	return sent
}

func head(path string, length int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, length)
}

// The server disconnects clients that never finish a handshake or a header.
func TestSlowHeaders(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	t.Parallel()
	p := startProcess(t, func(c *Config) { c.Limits.HeaderTimeout, c.Limits.RequestTimeout = longer, time.Hour })
	p.warm(t)
	var raw []net.Conn
	for range 100 {
		conn, err := net.Dial("tcp", p.address(p.port))
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte{0x16, 0x03, 0x01}) // the beginning of a ClientHello
		require.NoError(t, err)
		raw = append(raw, conn)
	}
	conns := p.open(t, 100, "POST /validate HTTP/1.1\r\nHost: x\r\n")
	closed(t, conns)
	for _, conn := range raw {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		_, err := io.ReadAll(conn)
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "still open")
	}
	p.good(t)
	p.settles(t)
}

// The server disconnects clients that never finish a body. Meanwhile they do not
// delay other clients.
func TestSlowBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	t.Parallel()
	p := startProcess(t, func(c *Config) { c.Limits.RequestTimeout = longer })
	p.warm(t)
	conns := p.open(t, defaults.Connections+100, head(admission.ValidatePath, 1<<20)+`{"apiVersion":`)
	p.good(t)
	slow := 0
	for _, text := range closed(t, conns) {
		if strings.Contains(text, "408 Request Timeout") {
			slow++
		}
	}
	require.Positive(t, slow, "some got an error")
	p.settles(t)
}

// Clients that use all the memory for received bodies keep others from sending
// large reviews, but not small ones.
func TestSlowLargeBodies(t *testing.T) {
	p := startProcess(t, func(c *Config) { c.Limits.RequestTimeout = time.Hour })
	p.warm(t)
	const fit, many = 6, 32 // bodies
	body := head(admission.ValidatePath, defaults.BodyBytes) + "{" + strings.Repeat(" ", defaults.BodyBytes-2)
	conns := p.open(t, fit, body)
	p.eventually(t, func(c *assert.CollectT, now usage) {
		assert.Greater(c, now.heap, p.before.heap+float64(fit*defaults.BodyBytes)*0.9)
	})
	conns = append(conns, p.open(t, many-fit, body)...)
	p.eventually(t, func(c *assert.CollectT, now usage) {
		assert.Less(c, now.heap, p.before.heap+float64(defaults.ReceivedBytes)+float64(many*(defaults.SmallBytes+100<<10)))
	})
	p.good(t)
	review := machineReview(`{"metadata":{"annotations":{"a":"` + strings.Repeat("x", defaults.BodyBytes-1<<10) + `"}}}`)
	client := p.client()
	defer client.CloseIdleConnections()
	code, answer, err := p.post(client, admission.ValidatePath, review)
	require.NoError(t, err)
	require.Equal(t, http.StatusTooManyRequests, code, answer)
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		code, answer, err := p.post(client, admission.ValidatePath, review)
		assert.NoError(c, err)
		assert.Equal(c, http.StatusOK, code, answer)
	}, patience, interval)
	p.good(t)
	client.CloseIdleConnections()
	p.settles(t)
}

// Clients that declare a large body and send little of it do not keep others from
// sending large reviews.
func TestDeclaredBodies(t *testing.T) {
	p := startProcess(t, func(c *Config) { c.Limits.RequestTimeout = time.Hour })
	p.warm(t)
	p.open(t, 32, head(admission.ValidatePath, defaults.BodyBytes)+"{"+strings.Repeat(" ", defaults.SmallBytes))
	client := p.client()
	defer client.CloseIdleConnections()
	review := machineReview(`{"metadata":{"annotations":{"a":"` + strings.Repeat("x", defaults.BodyBytes-1<<10) + `"}}}`)
	for range 3 {
		code, answer, err := p.post(client, admission.ValidatePath, review)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code, answer)
	}
	p.good(t)
}

// The server disconnects clients that do not read a large response, after a while or
// when it needs room for another client.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	const readers = 3
	t.Run("let go", func(t *testing.T) {
		t.Parallel()
		p := startProcess(t, func(c *Config) { c.Limits.ResponseTimeout = 6 * time.Second * slowdown })
		p.warm(t)
		p.readSlowly(t, readers)
		p.good(t)
		p.settles(t)
	})
	t.Run("make room", func(t *testing.T) {
		t.Parallel()
		p := startProcess(t, func(c *Config) { c.Limits.ResponseTimeout, c.Limits.Connections = time.Hour, readers })
		p.warm(t)
		p.readSlowly(t, readers)
		p.good(t)
	})
}

// readSlowly starts clients that ask for large responses, and read only how they
// begin.
func (p *process) readSlowly(t *testing.T, readers int) {
	t.Helper()
	body := fill(2<<20, statusReview, `{"input":{"hostImage":" "}}`, "]}}}}")
	for range readers {
		dialer := &net.Dialer{}
		raw, err := dialer.DialContext(t.Context(), "tcp", p.address(p.port))
		require.NoError(t, err)
		require.NoError(t, raw.(*net.TCPConn).SetReadBuffer(4096))
		conn := tls.Client(raw, p.trust())
		t.Cleanup(func() { conn.Close() })
		_, err = io.WriteString(conn, head(admission.MutatePath, len(body))+body)
		require.NoError(t, err)
		first := make([]byte, 12)
		_, err = io.ReadFull(conn, first)
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 200", string(first))
	}
}

// Idle connections make room for a new one, however many there are.
func TestManyIdleConnections(t *testing.T) {
	p := startProcess(t, nil)
	p.warm(t)
	p.open(t, 1000, "")
	p.open(t, 1000, head(admission.ValidatePath, 2)+"{}")
	p.good(t)
	var heap float64
	p.eventually(t, func(c *assert.CollectT, now usage) {
		assert.LessOrEqual(c, now.fds, p.before.fds+float64(defaults.Connections)+10)
		assert.LessOrEqual(c, now.heap, p.before.heap+float64(defaults.Connections*50<<10))
		heap = now.heap
	})
	t.Log("peak", p.peak(t)>>20, "MiB, heap of a connection", int(heap-p.before.heap)/defaults.Connections)
}

// The other ports of the process are limited, too.
func TestOtherPorts(t *testing.T) {
	p := startProcess(t, nil)
	p.warm(t)
	get := func(url string, header ...string) (int, error) {
		client := p.client()
		defer client.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		for _, value := range header {
			request.Header.Add("X-Long", value)
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	for _, url := range []string{"http://" + p.address(p.health) + "/readyz", "https://" + p.address(p.metrics) + "/metrics"} {
		for range 500 {
			conn, err := net.Dial("tcp", url[strings.Index(url, "1"):strings.LastIndex(url, "/")])
			require.NoError(t, err)
			defer conn.Close()
		}
		code, err := get(url)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code)
		code, err = get(url, strings.Repeat("x", defaults.HeaderBytes+10<<10))
		require.NoError(t, err)
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, code)
	}
	p.good(t)
	p.eventually(t, func(c *assert.CollectT, now usage) {
		assert.LessOrEqual(c, now.fds, p.before.fds+float64(2*defaults.OtherConnections)+10)
	})
}

// The server closes idle connections after a while.
func TestIdleConnectionsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	t.Parallel()
	p := startProcess(t, func(c *Config) { c.Limits.IdleTimeout, c.Limits.RequestTimeout = longer, time.Hour })
	p.warm(t)
	for _, text := range closed(t, p.open(t, 100, head(admission.ValidatePath, 2)+"{}")) {
		require.Contains(t, text, "HTTP/1.1 200 OK")
	}
	p.good(t)
	p.settles(t)
}

// While all connections are being served, a new one waits.
func TestAllConnectionsAreBusy(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	limited := limitConnections(listener, 1)
	defer limited.Close()
	accepted := make(chan *connection, 3)
	go func() {
		for {
			conn, err := limited.Accept()
			if err != nil {
				return
			}
			conn.(*connection).setWaiting(false)
			accepted <- conn.(*connection)
		}
	}()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
		require.NoError(t, err)
		return conn
	}
	first, second, third := dial(), dial(), dial()
	defer first.Close()
	defer second.Close()
	defer third.Close()
	one := <-accepted
	require.Never(t, func() bool { return len(accepted) > 0 }, short, interval)
	one.setWaiting(true)
	two := <-accepted
	_, err = first.Read(make([]byte, 1))
	require.Error(t, err, "closed to make room")
	require.Never(t, func() bool { return len(accepted) > 0 }, short, interval)
	require.NoError(t, two.Close())
	require.NoError(t, (<-accepted).Close())
	require.Error(t, one.Close(), "already closed to make room")
	limited.mu.Lock()
	defer limited.mu.Unlock()
	require.Zero(t, limited.open)
	require.Zero(t, limited.waiting.Len())
}
