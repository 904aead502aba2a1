// Package controllers sets up the controllers in a manager, with the providers
// that it is given.
package controllers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/configuration"
	"unbounded-cloud.io/hostformat/internal/operation"
)

// onByDefault lists all controllers, and whether * enables them.
var onByDefault = map[string]bool{
	operation.ControllerName:     true,
	configuration.ControllerName: false,
}

// Config configures the controllers.
type Config struct {
	// Names are the controllers to run, as returned by Enabled.
	Names []string

	// LeaderElection runs the controllers in one of several processes.
	LeaderElection bool
	// LeaderElectionNamespace is the namespace of the Lease. If empty, it is the
	// namespace of the pod.
	LeaderElectionNamespace string

	// Providers replace hosts. The key is the name that Machines use.
	Providers map[string]operation.Provider
	// UserData is what replaced hosts boot with.
	UserData *operation.UserData
	// Concurrency is the maximum number of operations that are processed at the
	// same time.
	Concurrency int
	// CallTimeout is the maximum time for one call to a provider.
	CallTimeout time.Duration
	// ClaimNamespace is the namespace of the Leases that record which operation
	// may replace which host.
	ClaimNamespace string
}

// Enabled returns the controllers that words enable, in the syntax of
// kube-controller-manager: * enables all that are on by default, foo enables the
// controller foo, and -foo disables it.
func Enabled(words []string) ([]string, error) {
	for _, word := range words {
		if _, known := onByDefault[strings.TrimPrefix(word, "-")]; !known && word != "*" {
			return nil, fmt.Errorf("unknown controller %q: must be one of %s", word, strings.Join(slices.Sorted(maps.Keys(onByDefault)), ", "))
		}
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(onByDefault)) {
		on := onByDefault[name] && slices.Contains(words, "*")
		for _, word := range words {
			if strings.TrimPrefix(word, "-") == name {
				on = word == name
			}
		}
		if on {
			names = append(names, name)
		}
	}
	return names, nil
}

// ManagerOptions returns what the controllers need of their manager.
func (c Config) ManagerOptions() ctrl.Options {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha3.AddToScheme(scheme))
	return ctrl.Options{
		Scheme:                  scheme,
		Cache:                   operation.CacheOptions(),
		LeaderElection:          c.LeaderElection,
		LeaderElectionID:        "hostformat-controllers",
		LeaderElectionNamespace: c.LeaderElectionNamespace,
	}
}

// AddTo adds the controllers to a manager.
func (c Config) AddTo(mgr ctrl.Manager) error {
	for _, name := range c.Names {
		var err error
		switch name {
		case operation.ControllerName:
			err = c.addOperation(mgr)
		case configuration.ControllerName:
			err = (&configuration.Reconciler{Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Recorder: mgr.GetEventRecorder("hostformat-" + name)}).SetupWithManager(mgr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c Config) addOperation(mgr ctrl.Manager) error {
	machines, err := operation.MachineListerWatcher(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	hosts := operation.NewHosts(machines)
	if err := mgr.Add(hosts); err != nil {
		return err
	}
	r := &operation.Reconciler{
		Live:           mgr.GetAPIReader(),
		Cache:          mgr.GetCache(),
		Hosts:          hosts,
		Writer:         mgr.GetClient(),
		Recorder:       mgr.GetEventRecorder("hostformat-" + operation.ControllerName),
		Providers:      c.Providers,
		UserData:       c.UserData,
		Clock:          clock.RealClock{},
		Backoff:        operation.Backoff{Base: time.Second, Cap: 5 * time.Minute},
		PollInterval:   2 * time.Second,
		CallTimeout:    c.CallTimeout,
		ClaimNamespace: c.ClaimNamespace,
		MarkDeployed:   slices.Contains(c.Names, configuration.ControllerName),
	}
	return r.SetupWithManager(mgr, c.Concurrency)
}
