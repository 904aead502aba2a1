package main

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"unbounded-cloud.io/hostformat/internal/admission"
)

// newHealth serves /healthz, which says that the process is alive, and
// /readyz, which says whether all checks pass and, unlike the server of
// controller-runtime, why not.
func newHealth(address string, checks ...healthz.Checker) manager.Runnable {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		for _, check := range checks {
			if err := check(r); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
	return &manager.Server{
		Name:   "health",
		Server: &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second},
	}
}

// drain takes a server out of service while it still answers.
type drain struct{ begun atomic.Bool }

// begin turns the server unready. From now on each answer closes its
// connection, so that the next call of that client goes to another replica.
func (d *drain) begin() { d.begun.Store(true) }

func (d *drain) ready(*http.Request) error {
	if d.begun.Load() {
		return errors.New("shutting down")
	}
	return nil
}

func (d *drain) wrap(server admission.Server) admission.Server { return drainedServer{server, d} }

type drainedServer struct {
	admission.Server
	drain *drain
}

func (s drainedServer) Register(path string, hook http.Handler) {
	s.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.drain.begun.Load() {
			w.Header().Set("Connection", "close")
		}
		hook.ServeHTTP(w, r)
	}))
}
