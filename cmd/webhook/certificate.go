package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// certificate serves the pair of files in a folder. It waits for them to
// appear, since a Secret may come later than the pod that mounts it, and reads
// them again when they change.
type certificate struct {
	dir     string
	log     logr.Logger
	watcher atomic.Pointer[certwatcher.CertWatcher]
	problem atomic.Pointer[error]
}

// Start watches the files until the context ends.
func (c *certificate) Start(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		watcher, err := certwatcher.New(filepath.Join(c.dir, corev1.TLSCertKey), filepath.Join(c.dir, corev1.TLSPrivateKeyKey))
		if err != nil {
			if last := c.problem.Swap(&err); last == nil || (*last).Error() != err.Error() {
				c.log.Info("waiting for a certificate", "problem", err.Error())
			}
			return false, nil
		}
		c.watcher.Store(watcher)
		return true, nil
	})
	if err != nil {
		return nil //nolint:nilerr // it was asked to stop while waiting
	}
	c.log.Info("loaded", "folder", c.dir)
	return c.watcher.Load().Start(ctx)
}

// NeedLeaderElection tells the manager that every replica needs a certificate.
func (c *certificate) NeedLeaderElection() bool { return false }

func (c *certificate) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	watcher := c.watcher.Load()
	if watcher == nil {
		return nil, errors.New("no certificate yet")
	}
	return watcher.GetCertificate(hello)
}

// expiry is the time, in seconds since 1970, at which the pair that is served
// expires; 0 while there is none.
func (c *certificate) expiry() float64 {
	watcher := c.watcher.Load()
	if watcher == nil {
		return 0
	}
	pair, err := watcher.GetCertificate(nil)
	if err != nil || pair.Leaf == nil {
		return 0
	}
	return float64(pair.Leaf.NotAfter.Unix())
}

// register exports expiry.
func (c *certificate) register(registry metrics.RegistererGatherer) error {
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "hostformat_certificate_expiration_timestamp_seconds",
		Help: "When the serving certificate expires, in seconds since 1970; 0 while there is none.",
	}, c.expiry)
	registry.Unregister(gauge) // of a server before, in tests
	return registry.Register(gauge)
}

// ready is a check that fails while there is no certificate, and says why.
func (c *certificate) ready(*http.Request) error {
	if c.watcher.Load() != nil {
		return nil
	}
	if problem := c.problem.Load(); problem != nil {
		return fmt.Errorf("no certificate: %w", *problem)
	}
	return errors.New("no certificate yet")
}
