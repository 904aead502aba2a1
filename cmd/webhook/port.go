package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// port serves the hooks that are registered with a server of controller-runtime
// by an HTTP server of its own, since that one's takes as many connections, and
// waits for as long, as a client likes.
type port struct {
	webhook.Server // keeps the hooks and counts their calls; is never started
	address        string
	tls            []func(*tls.Config)
	clientCA       string
	limits         limits
	serving        atomic.Bool
}

func (o *options) newPort(certificate *certificate) *port {
	return &port{
		Server:   webhook.NewServer(webhook.Options{}),
		address:  net.JoinHostPort(o.host, fmt.Sprint(o.port)),
		tls:      o.tls(certificate),
		clientCA: o.clientCA,
		limits:   production,
	}
}

// Start serves until the context ends.
func (p *port) Start(ctx context.Context) error {
	config := &tls.Config{}
	for _, set := range p.tls {
		set(config)
	}
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
	grace := time.Minute
	server := &manager.Server{
		Name:            "webhook",
		Listener:        tls.NewListener(limitConnections(listener, p.limits.Connections), config),
		ShutdownTimeout: &grace,
		Server: &http.Server{
			Handler:           p.WebhookMux(),
			ReadHeaderTimeout: p.limits.Header,
			ReadTimeout:       p.limits.Request,
			WriteTimeout:      p.limits.Answer,
			IdleTimeout:       p.limits.Idle,
			MaxHeaderBytes:    p.limits.HeaderBytes,
			ConnState:         connState,
			ConnContext:       connContext,
			HTTP2: &http.HTTP2Config{
				MaxConcurrentStreams:          p.limits.Streams,
				MaxReceiveBufferPerConnection: p.limits.StreamBytes,
				MaxReceiveBufferPerStream:     p.limits.StreamBytes,
			},
		},
	}
	return server.Start(ctx)
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
