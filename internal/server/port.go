package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// shutdownTimeout is how long a server waits for its open requests.
const shutdownTimeout = time.Minute

// port serves the webhook with an HTTP server of its own. That of
// controller-runtime limits neither connections nor time.
type port struct {
	webhook.Server // registers the hooks and counts their calls; it is never started
	config         Config
	tls            *tls.Config
	gate           *gate
	drain          *drain

	listening atomic.Bool
	reached   atomic.Bool // by ready
}

func newPort(config Config, get getCertificate, drain *drain) (*port, error) {
	p := &port{
		Server: webhook.NewServer(webhook.Options{}),
		config: config,
		tls:    tlsConfig(get),
		gate:   newGate(config.Limits),
		drain:  drain,
	}
	if config.Webhook.ClientCA != "" {
		if err := requireClientCA(p.tls, config.Webhook.ClientCA); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Register serves a hook at a path, within the limits.
func (p *port) Register(path string, hook http.Handler) {
	p.Server.Register(path, p.drain.wrap(p.gate.wrap(hook)))
}

// Start serves until ctx is done.
func (p *port) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.config.Webhook.Address)
	if err != nil {
		return err
	}
	p.listening.Store(true)
	return newServer(p.config, "webhook", listener, p.config.Limits.Connections, p.tls, p.WebhookMux()).Start(ctx)
}

// ready reports whether the port answers a TLS handshake.
func (p *port) ready(r *http.Request) error {
	// This client has no certificate. Where clients need one, the server rejects
	// it and logs that, so one successful check is enough.
	if p.config.Webhook.ClientCA != "" && p.reached.Load() {
		return nil
	}
	if !p.listening.Load() {
		return errors.New("the webhook's port is not open yet")
	}
	dialer := &tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 10 * time.Second},
		Config:    &tls.Config{InsecureSkipVerify: true}, // whether it answers matters, not its name
	}
	conn, err := dialer.DialContext(r.Context(), "tcp", p.config.Webhook.Address)
	if err != nil {
		return fmt.Errorf("the webhook's port does not answer: %w", err)
	}
	p.reached.Store(true)
	return conn.Close()
}

// addServer serves a handler at an address other than the webhook's, over TLS if
// there is a configuration for it.
func addServer(mgr manager.Manager, config Config, name, address string, secure *tls.Config, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return mgr.Add(newServer(config, name, listener, config.Limits.OtherConnections, secure, handler))
}

// newServer serves a handler within the limits, over TLS if there is a
// configuration for it.
func newServer(config Config, name string, listener net.Listener, connections int, secure *tls.Config, handler http.Handler) *manager.Server {
	listener = limitConnections(listener, connections)
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	timeout := shutdownTimeout
	http1 := &http.Protocols{}
	http1.SetHTTP1(true)
	return &manager.Server{
		Name:            name,
		Listener:        listener,
		ShutdownTimeout: &timeout,
		Server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: config.Limits.HeaderTimeout,
			ReadTimeout:       config.Limits.RequestTimeout,
			WriteTimeout:      config.Limits.ResponseTimeout,
			IdleTimeout:       config.Limits.IdleTimeout,
			MaxHeaderBytes:    config.Limits.HeaderBytes,
			Protocols:         http1,
			ConnState:         connState,
			ConnContext:       connContext,
			// At level info, clients that fail the handshake could flood the log.
			ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(config.Logger.WithName(name)), slog.LevelDebug),
		},
	}
}
