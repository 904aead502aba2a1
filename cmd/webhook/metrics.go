package main

import (
	"crypto/tls"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"unbounded-cloud.io/hostformat/certs"
)

// addMetrics serves /metrics, unless its address is 0, over TLS. A process that
// serves no webhook has no certificate, and makes itself one.
func (o *options) addMetrics(mgr manager.Manager, certificate *certificate) error {
	if o.metricsAddress == "0" {
		return nil
	}
	get := certificate.get
	if !o.webhook {
		ca, err := certs.NewCA()
		if err != nil {
			return err
		}
		cert, key, err := ca.Issue(10*365*24*time.Hour, "hostformat")
		if err != nil {
			return err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return err
		}
		get = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	return addServer(mgr, "metrics", o.metricsAddress, o.tls(get), mux)
}
