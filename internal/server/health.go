package server

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// startupTimeout is how long /startz waits for the checks: a little longer than
// cert-manager needs to issue a certificate.
const startupTimeout = 12 * time.Second

func addHealth(mgr manager.Manager, config Config, checks []healthz.Checker) error {
	return addServer(mgr, config, "health", config.HealthAddress, nil, healthHandler(startupTimeout, checks...))
}

// healthHandler serves three endpoints. /healthz reports that the process is
// alive. /readyz reports whether all checks pass and, unlike the server of
// controller-runtime, why one fails. /startz reports the same, but succeeds once
// the startup timeout has passed: the kubelet syncs a pod again when its startup
// probe succeeds, and then mounts a Secret that was created after the pod.
// Without that, the Secret appears more than a minute later.
func healthHandler(startup time.Duration, checks ...healthz.Checker) http.Handler {
	started := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	serve := func(path string, mayFail func() bool) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			for _, check := range checks {
				if err := check(r); err != nil && mayFail() {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
			}
			fmt.Fprintln(w, "ok")
		})
	}
	serve("/readyz", func() bool { return true })
	serve("/startz", func() bool { return time.Since(started) < startup })
	return mux
}

// drain takes a server out of service while it still serves.
type drain struct{ started, closing atomic.Bool }

// start makes the server report not ready, so that new connections go to another
// replica.
func (d *drain) start() { d.started.Store(true) }

// closeConnections closes each connection after its next response, so that the
// client sends its next request to another replica. This must not happen before
// every node knows that this replica is not ready: clients would connect to it
// again, and might lose that connection.
func (d *drain) closeConnections() { d.closing.Store(true) }

func (d *drain) ready(*http.Request) error {
	if d.started.Load() {
		return errors.New("shutting down")
	}
	return nil
}

func (d *drain) wrap(hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.closing.Load() {
			w.Header().Set("Connection", "close")
		}
		hook.ServeHTTP(w, r)
	})
}
