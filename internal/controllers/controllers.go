// Package controllers sets up the controllers in a manager, with the providers
// that it is given.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
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
	// CallTimeout is the maximum time for one call to a provider, and CallsPerProvider
	// how many calls of each may be outstanding at once, polls not counted.
	CallTimeout      time.Duration
	CallsPerProvider int
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

// Set is the controllers of one process.
type Set struct {
	config Config
	api    *rest.Config
	calls  *operation.Calls
	caches caches
}

// New returns the controllers that config names. They work on the API server of api.
func New(api *rest.Config, config Config) *Set {
	return &Set{config: config, api: api, calls: operation.NewCalls(operation.CallOptions{
		Clock: clock.RealClock{}, Timeout: config.CallTimeout, PerProvider: config.CallsPerProvider,
	})}
}

// leaseID is the name of the Lease for leader election.
const leaseID = "hostformat-controllers"

// electionRetry is how often a process that is not the leader looks at the Lease. A
// Lease that is given up is taken within about twice as long.
const electionRetry = 800 * time.Millisecond

// renewDeadline is how long the leader tries to renew the Lease before it gives up.
const renewDeadline = 10 * time.Second

// ManagerOptions returns what the controllers need of their manager.
func (s *Set) ManagerOptions() (ctrl.Options, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha3.AddToScheme(scheme))
	options := ctrl.Options{
		Scheme: scheme,
		Cache:  operation.CacheOptions(),
		// The manager waits for the last answers of providers.
		GracefulShutdownTimeout: new(operation.DrainTimeout(s.config.CallTimeout)),
	}
	if !s.config.LeaderElection {
		return options, nil
	}
	lock, err := s.newLock()
	options.LeaderElection, options.LeaderElectionID, options.LeaderElectionResourceLockInterface = true, leaseID, lock
	options.LeaderElectionReleaseOnCancel = true // only after the runnables have ended
	options.RenewDeadline, options.RetryPeriod = new(renewDeadline), new(electionRetry)
	return options, err
}

// AddTo adds the controllers to a manager.
func (s *Set) AddTo(mgr ctrl.Manager) error {
	for _, name := range s.config.Names {
		var err error
		switch name {
		case operation.ControllerName:
			err = s.addOperation(mgr)
		case configuration.ControllerName:
			err = s.addConfiguration(mgr)
		}
		if err != nil {
			return err
		}
	}
	return mgr.Add(&s.caches)
}

// Ready reports which controller cannot work, and why.
func (s *Set) Ready(*http.Request) error { return s.caches.ready() }

func (s *Set) addOperation(mgr ctrl.Manager) error {
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
		Providers:      s.config.Providers,
		UserData:       s.config.UserData,
		Clock:          clock.RealClock{},
		Backoff:        operation.Backoff{Base: time.Second, Cap: 5 * time.Minute},
		PollInterval:   2 * time.Second,
		Calls:          s.calls,
		ClaimNamespace: s.config.ClaimNamespace,
		MarkDeployed:   slices.Contains(s.config.Names, configuration.ControllerName),
	}
	err = errors.Join(
		s.caches.add(mgr, operation.ControllerName, "machineoperations", cached(mgr, "MachineOperation")),
		s.caches.add(mgr, operation.ControllerName, "machines", func(context.Context) (func() bool, error) { return hosts.HasSynced, nil }),
		s.caches.add(mgr, operation.ControllerName, "machineconfigurationversions", nil),
	)
	if err != nil {
		return err
	}
	return r.SetupWithManager(mgr, s.config.Concurrency)
}

func (s *Set) addConfiguration(mgr ctrl.Manager) error {
	r := &configuration.Reconciler{
		Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Recorder: mgr.GetEventRecorder("hostformat-" + configuration.ControllerName), Clock: clock.RealClock{},
	}
	err := errors.Join(
		s.caches.add(mgr, configuration.ControllerName, "machineconfigurations", cached(mgr, "MachineConfiguration")),
		s.caches.add(mgr, configuration.ControllerName, "machineconfigurationversions", cached(mgr, "MachineConfigurationVersion")),
	)
	if err != nil {
		return err
	}
	return r.SetupWithManager(mgr)
}
