// Command webhook serves the admission rules of hostformat, runs its
// controllers, or does both.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"unbounded-cloud.io/hostformat/internal/admission"
	"unbounded-cloud.io/hostformat/internal/operation"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// startup is how long the start-up of a process waits for its certificate: as
// long as it takes cert-manager to issue one, and a little more.
const startup = 12 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// Once the first signal has begun the shutdown, a second one ends the
	// process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// setLoggers guards the loggers of the libraries: they are the process's, and one
// of them may not be set while it is used, as by what is left of an earlier run.
var setLoggers sync.Once

// run does what the command line says until the context ends, and returns the
// exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp), err == nil && o == nil:
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "webhook: %v; see webhook --help\n", err)
		return exitUsage
	}
	log := o.logger(stderr)
	setLoggers.Do(func() {
		ctrl.SetLogger(log)
		klog.SetLogger(log)
	})
	if err := serve(ctx, log, o); err != nil {
		fmt.Fprintf(stderr, "webhook: %v\n", err)
		return exitFailure
	}
	return 0
}

// serve runs the webhook until the context ends, and then drains it.
func serve(ctx context.Context, log logr.Logger, o *options) error {
	certificate := &certificate{dir: o.certDir, log: log.WithName("certificate")}
	server := o.newPort(certificate, log)
	config, err := o.clientConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Logger:                  log,
		Scheme:                  scheme(),
		WebhookServer:           server,
		LeaderElection:          o.leaderElect,
		LeaderElectionID:        "hostformat-controllers",
		LeaderElectionNamespace: o.leaderElectionNamespace,
		Cache:                   operation.CacheOptions(),
		HealthProbeBindAddress:  "0", // we serve both, within limits
		Metrics:                 metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	drain := &drain{}
	checks := []healthz.Checker{drain.ready}
	if o.webhook {
		gate := newGate(server.limits)
		hooks := wrapping{mgr.GetWebhookServer(), func(hook http.Handler) http.Handler { return drain.wrap(gate.wrap(hook)) }}
		admission.Register(hooks, admission.Enforcement(o.enforcement))
		checks = append(checks, certificate.ready, o.listening(server))
		if err := certificate.register(metrics.Registry); err != nil {
			return err
		}
		if err := mgr.Add(certificate); err != nil {
			return err
		}
	}
	if err := addServer(mgr, "health", o.healthAddress, nil, healthOf(startup, checks...)); err != nil {
		return err
	}
	if err := o.addMetrics(mgr, certificate); err != nil {
		return err
	}
	if err := o.addControllers(mgr); err != nil {
		return err
	}

	log.Info("starting", "version", version(), "webhook", o.webhook, "controllers", o.enabled())
	running, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		<-ctx.Done()
		log.Info("shutting down: no longer ready", "delay", o.shutdownDelay.String())
		drain.begin()
		time.AfterFunc(o.shutdownDelay/2, drain.close)
		time.AfterFunc(o.shutdownDelay, stop)
	}()
	return mgr.Start(running)
}
