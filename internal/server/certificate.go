package server

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
)

// certificate is the serving certificate in a directory. It waits for the files,
// because a Secret can be created after the pod that mounts it, and reloads them
// when they change.
type certificate struct {
	dir     string
	log     logr.Logger
	watcher atomic.Pointer[certwatcher.CertWatcher]
	problem atomic.Pointer[error] // why there is no watcher yet
}

func newCertificate(config Config) *certificate {
	return &certificate{dir: config.Webhook.CertDir, log: config.Logger.WithName("certificate")}
}

// Start watches the files until ctx is done.
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
		return nil //nolint:nilerr // ctx was done before there was a certificate
	}
	c.log.Info("loaded the certificate", "directory", c.dir)
	return c.watcher.Load().Start(ctx)
}

// NeedLeaderElection is false because every replica needs a certificate.
func (c *certificate) NeedLeaderElection() bool { return false }

func (c *certificate) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	watcher := c.watcher.Load()
	if watcher == nil {
		return nil, errors.New("no certificate yet")
	}
	return watcher.GetCertificate(hello)
}

// expiryGauge exports when the certificate expires.
func (c *certificate) expiryGauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "hostformat_certificate_expiration_timestamp_seconds",
		Help: "Time at which the serving certificate expires, in seconds since 1970; 0 if there is no certificate yet.",
	}, func() float64 {
		pair, err := c.get(nil)
		if err != nil || pair.Leaf == nil {
			return 0
		}
		return float64(pair.Leaf.NotAfter.Unix())
	})
}

// ready fails while there is no certificate, and says why.
func (c *certificate) ready(*http.Request) error {
	if c.watcher.Load() != nil {
		return nil
	}
	if problem := c.problem.Load(); problem != nil {
		return fmt.Errorf("no certificate: %w", *problem)
	}
	return errors.New("no certificate yet")
}
