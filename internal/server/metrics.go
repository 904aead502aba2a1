package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// addMetrics serves /metrics over TLS: the metrics of the process, and those of
// registry, which belong to this server. If get is nil, the certificate is
// self-signed.
func addMetrics(mgr manager.Manager, config Config, get getCertificate, registry prometheus.Gatherer) error {
	if config.MetricsAddress == "0" {
		return nil
	}
	if get == nil {
		var err error
		if get, err = selfSigned(); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(prometheus.Gatherers{metrics.Registry, registry}, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	return addServer(mgr, config, "metrics", config.MetricsAddress, tlsConfig(get), mux)
}
