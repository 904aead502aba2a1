package main

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// healthOf answers /healthz, which says that the process is alive, /readyz,
// which says whether all checks pass and, unlike the server of
// controller-runtime, why not, and /startz, which says the same but gives up
// waiting after a while. Kubelet looks at a pod anew when its start-up ends, and
// then shows it a Secret that came later than the pod; else that takes it more
// than a minute.
func healthOf(startup time.Duration, checks ...healthz.Checker) http.Handler {
	begun := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	serve := func(path string, patience time.Duration) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			for _, check := range checks {
				if err := check(r); err != nil && (patience == 0 || time.Since(begun) < patience) {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
			}
			fmt.Fprintln(w, "ok")
		})
	}
	serve("/readyz", 0)
	serve("/startz", startup)
	return mux
}

// listening checks that the webhook's port speaks TLS. The check has no
// certificate to show: where clients must show one it is refused, and the
// server logs that, so it is made until the port has answered once.
func (o *options) listening(server webhook.Server) healthz.Checker {
	check := server.StartedChecker()
	if o.clientCA == "" {
		return check
	}
	var answered atomic.Bool
	return func(r *http.Request) error {
		if answered.Load() {
			return nil
		}
		err := check(r)
		answered.Store(err == nil)
		return err
	}
}

// drain takes a server out of service while it still answers.
type drain struct{ begun, closing atomic.Bool }

// begin turns the server unready, so that new connections go elsewhere.
func (d *drain) begin() { d.begun.Store(true) }

// close has each answer close its connection from now on, so that the next
// call of that client goes to another replica. Done before every node has heard
// that this one is unready, it would only have clients connect here anew, and
// they may lose the connection that they made in vain.
func (d *drain) close() { d.closing.Store(true) }

func (d *drain) ready(*http.Request) error {
	if d.begun.Load() {
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
