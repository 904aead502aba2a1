package main

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

// How long tests make limits that they wait for.
const short, longer = time.Second * slowdown, 4 * time.Second * slowdown

// open opens connections, each with a handshake and a first text, and closes
// them when the test ends.
func (p *process) open(t *testing.T, count int, text string) []*tls.Conn {
	t.Helper()
	conns := make([]*tls.Conn, count)
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() {
			conn, err := p.dial(p.port, nil)
			if assert.NoError(t, err) {
				conns[i] = conn
				_, _ = io.WriteString(conn, text) // it may be closed already
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

// closed returns what the server said on each connection before it closed it,
// which it must do by itself.
func closed(t *testing.T, conns []*tls.Conn) []string {
	t.Helper()
	said := make([]string, len(conns))
	for i, conn := range conns {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		text, err := io.ReadAll(conn)
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "connection %d is still open", i)
		said[i] = string(text)
	}
	return said
}

func head(path string, length int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, length)
}

// Who never ends a handshake or a header is let go.
func TestSlowHeaders(t *testing.T) {
	p := startProcess(t, func(l *limits) { l.Header, l.Request = longer, time.Hour })
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

// Who never ends a body is let go, and holds up nobody meanwhile.
func TestSlowBodies(t *testing.T) {
	p := startProcess(t, func(l *limits) { l.Request = longer })
	p.warm(t)
	conns := p.open(t, production.Connections+100, head(admission.ValidatePath, 1<<20)+`{"apiVersion":`)
	p.good(t)
	slow := 0
	for _, text := range closed(t, conns) {
		if strings.Contains(text, "408 Request Timeout") {
			slow++
		}
	}
	require.Positive(t, slow, "some were told so")
	p.settles(t)
}

// Who holds as much as may be held keeps others from sending large reviews, but
// not small ones.
func TestSlowLargeBodies(t *testing.T) {
	p := startProcess(t, func(l *limits) { l.Request = time.Hour })
	p.warm(t)
	const fit, many = 6, 32 // bodies
	body := head(admission.ValidatePath, production.Body) + "{" + strings.Repeat(" ", production.Body-2)
	conns := p.open(t, fit, body)
	p.comesTo(t, func(c *assert.CollectT, now taken) {
		assert.Greater(c, now.heap, p.begun.heap+float64(fit*production.Body)*0.9)
	})
	conns = append(conns, p.open(t, many-fit, body)...)
	p.comesTo(t, func(c *assert.CollectT, now taken) {
		assert.Less(c, now.heap, p.begun.heap+float64(production.Received)+float64(many*(production.Small+100<<10)))
	})
	p.good(t)
	review := machineReview(`{"metadata":{"annotations":{"a":"` + strings.Repeat("x", production.Body-1<<10) + `"}}}`)
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

// Who declares a large body and sends little of it takes no room from others.
func TestDeclaredBodies(t *testing.T) {
	p := startProcess(t, func(l *limits) { l.Request = time.Hour })
	p.warm(t)
	p.open(t, 32, head(admission.ValidatePath, production.Body)+"{"+strings.Repeat(" ", production.Small))
	client := p.client()
	defer client.CloseIdleConnections()
	review := machineReview(`{"metadata":{"annotations":{"a":"` + strings.Repeat("x", production.Body-1<<10) + `"}}}`)
	for range 3 {
		code, answer, err := p.post(client, admission.ValidatePath, review)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code, answer)
	}
	p.good(t)
}

// Who does not read a large answer is let go after a while, and makes room before
// that.
func TestSlowReaders(t *testing.T) {
	const readers = 3
	t.Run("let go", func(t *testing.T) {
		p := startProcess(t, func(l *limits) { l.Answer = 10 * time.Second * slowdown })
		p.warm(t)
		p.readSlowly(t, readers)
		p.good(t)
		p.settles(t)
	})
	t.Run("make room", func(t *testing.T) {
		p := startProcess(t, func(l *limits) { l.Answer, l.Connections = time.Hour, readers })
		p.warm(t)
		p.readSlowly(t, readers)
		p.good(t)
	})
}

// readSlowly has so many clients ask for large answers, and read no more of them
// than that they begin.
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

// Connections that are open make room for a call, be they ever so many.
func TestManyIdleConnections(t *testing.T) {
	p := startProcess(t, nil)
	p.warm(t)
	p.open(t, 1000, "")
	p.open(t, 1000, head(admission.ValidatePath, 2)+"{}")
	p.good(t)
	var heap float64
	p.comesTo(t, func(c *assert.CollectT, now taken) {
		assert.LessOrEqual(c, now.fds, p.begun.fds+float64(production.Connections)+10)
		assert.LessOrEqual(c, now.heap, p.begun.heap+float64(production.Connections*50<<10))
		heap = now.heap
	})
	t.Log("peak", p.peak(t)>>20, "MiB, heap of a connection", int(heap-p.begun.heap)/production.Connections)
}

// Nor do the other ports of the process take more than there is room for.
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
		code, err = get(url, strings.Repeat("x", production.HeaderBytes+10<<10))
		require.NoError(t, err)
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, code)
	}
	p.good(t)
	p.comesTo(t, func(c *assert.CollectT, now taken) {
		assert.LessOrEqual(c, now.fds, p.begun.fds+float64(2*production.Others)+10)
	})
}

// An idle connection is closed after a while.
func TestIdleConnectionsEnd(t *testing.T) {
	p := startProcess(t, func(l *limits) { l.Idle, l.Request = longer, time.Hour })
	p.warm(t)
	for _, text := range closed(t, p.open(t, 100, head(admission.ValidatePath, 2)+"{}")) {
		require.Contains(t, text, "HTTP/1.1 200 OK")
	}
	p.good(t)
	p.settles(t)
}

// While every connection is being answered, another one waits.
func TestAllConnectionsAreBusy(t *testing.T) {
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
			conn.(*connection).waits(false)
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
	one.waits(true)
	two := <-accepted
	_, err = first.Read(make([]byte, 1))
	require.Error(t, err, "it made room")
	require.Never(t, func() bool { return len(accepted) > 0 }, short, interval)
	require.NoError(t, two.Close())
	require.NoError(t, (<-accepted).Close())
	require.Error(t, one.Close(), "it was closed to make room")
	limited.mu.Lock()
	defer limited.mu.Unlock()
	require.Zero(t, limited.open)
	require.Zero(t, limited.waiting.Len())
}
