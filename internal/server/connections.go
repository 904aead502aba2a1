package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// limitedListener caps open connections. A new connection closes the one that has
// been waiting for its client longest, between requests or within one, so idle
// connections never keep a client out. While all connections are being served,
// the new one waits.
type limitedListener struct {
	net.Listener
	limit int

	mu      sync.Mutex
	changed *sync.Cond
	open    int
	waiting list.List // connections that wait for their client, longest first
	closed  bool
}

func limitConnections(listener net.Listener, limit int) *limitedListener {
	l := &limitedListener{Listener: listener, limit: limit}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Accept returns the next connection once it is within the limit.
func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.limit && !l.closed {
		if longest := l.waiting.Front(); longest != nil {
			c := longest.Value.(*connection)
			l.release(c)
			c.Conn.Close()
		} else {
			l.changed.Wait()
		}
	}
	c := &connection{Conn: conn, listener: l}
	l.open++
	c.element = l.waiting.PushBack(c)
	return c, nil
}

// Close closes the listener and ends an Accept that waits.
func (l *limitedListener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// release stops counting a connection. The caller holds mu.
func (l *limitedListener) release(c *connection) {
	if !c.released {
		c.released = true
		l.open--
		l.changed.Broadcast()
	}
	if c.element != nil {
		l.waiting.Remove(c.element)
		c.element = nil
	}
}

// connection is a connection that its listener counts.
type connection struct {
	net.Conn
	listener *limitedListener
	element  *list.Element // in listener.waiting, or nil
	released bool
}

// Close closes the connection and makes room for another one.
func (c *connection) Close() error {
	c.listener.mu.Lock()
	c.listener.release(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// setWaiting records whether the server waits for the client.
func (c *connection) setWaiting(waiting bool) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.released || waiting == (c.element != nil):
	case waiting:
		c.element = l.waiting.PushBack(c)
		l.changed.Broadcast()
	default:
		l.waiting.Remove(c.element)
		c.element = nil
	}
}

// connState is a hook of http.Server. A connection is active from the end of a
// request header to the end of the response.
func connState(conn net.Conn, state http.ConnState) {
	if state == http.StateActive || state == http.StateIdle {
		underlying(conn).(*connection).setWaiting(state == http.StateIdle)
	}
}

// underlying returns the connection below TLS.
func underlying(conn net.Conn) net.Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return conn
}

type connectionKey struct{}

// connContext is a hook of http.Server that stores the connection for setWaiting.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, underlying(conn))
}

// setWaiting records whether the server waits for the client that sent a request.
func setWaiting(r *http.Request, waiting bool) {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		c.setWaiting(waiting)
	}
}
