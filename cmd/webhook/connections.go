package main

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// connections is a listener that has so many connections at most. One more
// closes the connection that has been waiting for its client longest, between
// calls or within one, so that a thousand idle ones keep nobody out; it waits
// itself while all others are being answered.
type connections struct {
	net.Listener
	limit int

	mu      sync.Mutex
	changed *sync.Cond
	open    int
	waiting list.List // those that wait for their client, the longest first
	closed  bool
}

func limitConnections(listener net.Listener, limit int) *connections {
	l := &connections{Listener: listener, limit: limit}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Accept implements net.Listener.
func (l *connections) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.limit && !l.closed {
		if longest := l.waiting.Front(); longest != nil {
			c := longest.Value.(*connection)
			l.forget(c)
			c.Conn.Close()
		} else {
			l.changed.Wait()
		}
	}
	c := &connection{Conn: conn, of: l}
	l.open++
	c.place = l.waiting.PushBack(c)
	return c, nil
}

// Close implements net.Listener.
func (l *connections) Close() error {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

func (l *connections) forget(c *connection) {
	if !c.forgotten {
		c.forgotten = true
		l.open--
		l.changed.Broadcast()
	}
	if c.place != nil {
		l.waiting.Remove(c.place)
		c.place = nil
	}
}

// connection is one of connections.
type connection struct {
	net.Conn
	of        *connections
	place     *list.Element // in waiting, nil while it is not there
	forgotten bool
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// waits tells whether the server waits for the client from now on.
func (c *connection) waits(so bool) {
	l := c.of
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.forgotten || so == (c.place != nil):
	case so:
		c.place = l.waiting.PushBack(c)
		l.changed.Broadcast()
	default:
		l.waiting.Remove(c.place)
		c.place = nil
	}
}

// connState is told by net/http. A connection is active from the end of a
// header to the end of the answer.
func connState(conn net.Conn, state http.ConnState) {
	if state == http.StateActive || state == http.StateIdle {
		bare(conn).(*connection).waits(state == http.StateIdle)
	}
}

// bare is what TLS, if there is any, is spoken over.
func bare(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return conn
}

type connectionKey struct{}

// connContext has connectionOf find the connection of a call.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, bare(conn))
}

// connectionOf returns the connection of a call, or nil if it came over none of
// ours.
func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}
