// Package server serves the admission webhook, health checks and metrics, and
// runs controllers, as its Config says. It bounds the memory that clients can
// use, whatever they send.
package server

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"unbounded-cloud.io/hostformat/internal/admission"
)

// getCertificate returns the certificate for a TLS handshake.
type getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// Run serves until ctx is done. Then it reports not ready, keeps serving for the
// shutdown delay if it serves the webhook, and returns nil.
func Run(ctx context.Context, config Config) error {
	if config.Limits == (Limits{}) {
		config.Limits = DefaultLimits()
	}
	mgr, err := newManager(config)
	if err != nil {
		return err
	}
	drain := &drain{}
	checks := []healthz.Checker{drain.ready}
	registry := prometheus.NewRegistry()
	var get getCertificate
	if config.Webhook != nil {
		certificate := newCertificate(config)
		port, err := newPort(config, certificate.get, drain)
		if err != nil {
			return err
		}
		admission.Register(port, config.Webhook.Enforcement)
		checks = append(checks, certificate.ready, port.ready)
		registry.MustRegister(certificate.expiryGauge())
		get = certificate.get
		if err := mgr.Add(certificate); err != nil {
			return err
		}
		if err := mgr.Add(port); err != nil {
			return err
		}
	}
	if config.Webhook == nil {
		config.ShutdownDelay = 0 // nobody has to switch to another replica
		if config.Controllers != nil {
			checks = append(checks, config.Controllers.Ready)
		}
	}
	if err := addHealth(mgr, config, checks); err != nil {
		return err
	}
	if err := addMetrics(mgr, config, get, registry); err != nil {
		return err
	}
	if config.Controllers != nil {
		if err := config.Controllers.Add(mgr); err != nil {
			return err
		}
	}

	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	unregister := context.AfterFunc(ctx, func() {
		config.Logger.Info("shutting down, no longer ready", "delay", config.ShutdownDelay.String())
		drain.start()
		time.AfterFunc(config.ShutdownDelay/2, drain.closeConnections)
		time.AfterFunc(config.ShutdownDelay, stop)
	})
	defer unregister()
	return mgr.Start(running)
}

// newManager returns a manager that serves nothing by itself: the servers of
// controller-runtime do not limit their clients.
func newManager(config Config) (ctrl.Manager, error) {
	// The webhook calls no API, so it starts and serves while the API server is
	// down. Without controllers, nothing uses this address.
	api, options := &rest.Config{Host: "https://kubernetes.invalid"}, ctrl.Options{}
	if config.Controllers != nil {
		api, options = config.Controllers.API, config.Controllers.Options
	}
	options.Logger = config.Logger
	options.HealthProbeBindAddress = "0"
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	return ctrl.NewManager(api, options)
}
