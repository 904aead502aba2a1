package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"unbounded-cloud.io/hostformat/internal/admission"
)

// port serves the hooks that are registered with a server of controller-runtime
// by an HTTP server of its own, since that one's takes as many connections, and
// waits for as long, as a client likes.
type port struct {
	webhook.Server // keeps the hooks and counts their calls; is never started
	address        string
	tls            *tls.Config
	log            logr.Logger
	clientCA       string
	limits         limits
	serving        atomic.Bool
}

func (o *options) newPort(certificate *certificate, log logr.Logger) *port {
	return &port{
		Server:   webhook.NewServer(webhook.Options{}),
		address:  net.JoinHostPort(o.host, fmt.Sprint(o.port)),
		tls:      o.tls(certificate.get),
		log:      log,
		clientCA: o.clientCA,
		limits:   production,
	}
}

// wrapping is a server that registers each hook wrapped.
type wrapping struct {
	admission.Server
	wrap func(http.Handler) http.Handler
}

func (s wrapping) Register(path string, hook http.Handler) { s.Server.Register(path, s.wrap(hook)) }

// Start serves until the context ends.
func (p *port) Start(ctx context.Context) error {
	config := p.tls.Clone()
	if p.clientCA != "" {
		text, err := os.ReadFile(p.clientCA)
		if err != nil {
			return fmt.Errorf("failed to read client CA cert: %w", err)
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !config.ClientCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("failed to read client CA cert: %s holds no certificate", p.clientCA)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.address)
	if err != nil {
		return err
	}
	p.serving.Store(true)
	return p.limits.newServer("webhook", listener, p.limits.Connections, config, p.WebhookMux(), p.log).Start(ctx)
}

// newServer serves a handler within the limits, over TLS if there is a
// configuration for it.
func (l limits) newServer(name string, listener net.Listener, connections int, config *tls.Config, handler http.Handler, log logr.Logger) *manager.Server {
	listener = limitConnections(listener, connections)
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	grace := time.Minute
	http1 := &http.Protocols{}
	http1.SetHTTP1(true)
	return &manager.Server{
		Name:            name,
		Listener:        listener,
		ShutdownTimeout: &grace,
		Server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: l.Header,
			ReadTimeout:       l.Request,
			WriteTimeout:      l.Answer,
			IdleTimeout:       l.Idle,
			MaxHeaderBytes:    l.HeaderBytes,
			ConnState:         connState,
			ConnContext:       connContext,
			// Whoever does not get through a handshake would fill the log.
			ErrorLog:  slog.NewLogLogger(logr.ToSlogHandler(log.WithName(name)), slog.LevelDebug),
			Protocols: http1,
		},
	}
}

// addServer serves one of the other ports.
func addServer(mgr manager.Manager, name, address string, config *tls.Config, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return mgr.Add(production.newServer(name, listener, production.Others, config, handler, mgr.GetLogger()))
}

// StartedChecker returns a check that the port speaks TLS.
func (p *port) StartedChecker() healthz.Checker {
	dialer := &tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 10 * time.Second},
		Config:    &tls.Config{InsecureSkipVerify: true}, // it asks for life, not for a name
	}
	return func(r *http.Request) error {
		if !p.serving.Load() {
			return errors.New("the webhook's port is not open yet")
		}
		conn, err := dialer.DialContext(r.Context(), "tcp", p.address)
		if err != nil {
			return fmt.Errorf("the webhook's port does not answer: %w", err)
		}
		return conn.Close()
	}
}
