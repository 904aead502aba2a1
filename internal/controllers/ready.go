package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// caches knows whether the controllers can read what they work from. A cache waits
// forever for a permission or a CRD that is missing, so each resource is also read
// once in a while, and the error is told.
type caches struct {
	resources []*resource
}

// resource is one that a controller reads.
type resource struct {
	controller, name string
	// watch makes the cache of the resource, where it has one, read.
	watch  func(context.Context) (synced func() bool, err error)
	client dynamic.ResourceInterface

	mu  sync.Mutex
	err error
}

// The time between two looks at a cache, and between two reads of its resource.
const (
	lookInterval  = time.Second
	probeInterval = 30 * time.Second
	probeTimeout  = 10 * time.Second
)

var controllerReady = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "hostformat_controller_ready",
	Help: "Whether a controller can read what it works from (1), or not (0), by controller.",
}, []string{"controller"})

func init() { metrics.Registry.MustRegister(controllerReady) }

// add adds a resource that a controller reads; watch is nil if it has no cache.
func (c *caches) add(mgr ctrl.Manager, controller, name string, watch func(context.Context) (func() bool, error)) error {
	client, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	c.resources = append(c.resources, &resource{
		controller: controller, name: name, watch: watch, client: client.Resource(v1alpha3.GroupVersion.WithResource(name)),
		err: errors.New("has not been read yet"),
	})
	controllerReady.WithLabelValues(controller).Set(0)
	return nil
}

// cached returns the cache of a kind in the manager, which is filled in processes that
// are not the leader, too.
func cached(mgr ctrl.Manager, kind string) func(context.Context) (func() bool, error) {
	return func(ctx context.Context) (func() bool, error) {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind(kind))
		informer, err := mgr.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		return informer.HasSynced, nil
	}
}

// NeedLeaderElection makes the checks run in every process: one that could not work
// as the leader is not ready either.
func (c *caches) NeedLeaderElection() bool { return false }

// Start checks all resources until ctx is done.
func (c *caches) Start(ctx context.Context) error {
	var all sync.WaitGroup
	for _, r := range c.resources {
		all.Go(func() { c.check(ctx, r) })
	}
	all.Wait()
	return nil
}

// check keeps the state of a resource.
func (c *caches) check(ctx context.Context, r *resource) {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	var synced func() bool
	if r.watch == nil {
		synced = func() bool { return true }
	}
	var probed time.Time
	var refused error
	for {
		var err error
		if synced == nil {
			synced, err = r.watch(ctx)
		}
		if filled := err == nil && synced(); time.Since(probed) >= probeInterval || refused != nil || !filled && time.Since(probed) >= probeTimeout {
			refused, probed = r.probe(ctx), time.Now()
		}
		switch {
		case refused != nil && permanent(refused):
			c.set(ctx, r, refused)
		case err == nil && synced():
			c.set(ctx, r, nil) // a read that failed by itself is the API server's trouble
		default:
			c.set(ctx, r, errors.Join(errors.New("the cache is not filled yet"), err, refused))
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// permanent reports whether an error does not go away by itself.
func permanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// probe lists and watches a resource as its cache does.
func (r *resource) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	list, err := r.client.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || r.watch == nil {
		return err
	}
	watch, err := r.client.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), TimeoutSeconds: new(int64(1))})
	if err == nil {
		watch.Stop()
	}
	return err
}

// set stores the state of a resource, and that of its controller in the metric.
func (c *caches) set(ctx context.Context, r *resource, err error) {
	r.mu.Lock()
	was := r.err
	r.err = err
	r.mu.Unlock()
	ready := 1.0
	for _, other := range c.resources {
		if other.controller == r.controller && other.failure() != nil {
			ready = 0
		}
	}
	controllerReady.WithLabelValues(r.controller).Set(ready)
	log := logf.FromContext(ctx).WithValues("controller", r.controller, "resource", r.name)
	switch {
	case err == nil && was != nil:
		log.Info("the resource can be read")
	case err != nil && (was == nil || was.Error() != err.Error()):
		log.Info("the controller cannot work", "error", err.Error())
	}
}

func (r *resource) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// ready reports which controllers cannot work, and why.
func (c *caches) ready() error {
	var failures []error
	for _, r := range c.resources {
		if err := r.failure(); err != nil {
			failures = append(failures, fmt.Errorf("controller %s cannot work: %s: %w", r.controller, r.name, err))
		}
	}
	return errors.Join(failures...)
}
