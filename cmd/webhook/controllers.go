package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"unbounded-cloud.io/hostformat/internal/controllers"
	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/operation/simulated"
	"unbounded-cloud.io/hostformat/internal/server"
)

func (o *options) validateControllers() (err error) {
	if o.enabled, err = controllers.Enabled(o.controllers); err != nil {
		return fmt.Errorf("--controllers: %w", err)
	}
	running := len(o.enabled) > 0
	switch {
	case !o.webhook && !running:
		return errors.New("--webhook=false requires --controllers: otherwise nothing would run")
	case o.leaderElect && o.webhook:
		return errors.New("--leader-elect requires --webhook=false: a process that loses its Lease exits immediately, and would drop the requests that it is serving")
	case o.leaderElect && !running:
		return errors.New("--leader-elect requires --controllers")
	case o.concurrency < 1:
		return fmt.Errorf("--concurrent-operations must be at least 1, got %d", o.concurrency)
	case o.callTimeout <= 0:
		return fmt.Errorf("--provider-call-timeout must be greater than 0, got %s", o.callTimeout)
	case o.callsPerProvider < 1:
		return fmt.Errorf("--concurrent-provider-calls must be at least 1, got %d", o.callsPerProvider)
	case len(validation.IsDNS1123Label(o.claimNamespace)) > 0:
		return fmt.Errorf("--claim-namespace must be the name of a namespace, got %q", o.claimNamespace)
	}
	for _, name := range o.providers {
		if name != simulated.Name {
			return fmt.Errorf("unknown provider %q in --providers: must be %s", name, simulated.Name)
		}
	}
	if _, err := simulated.ParseOptions(o.simulated); err != nil {
		return fmt.Errorf("--simulated-provider: %w", err)
	}
	return nil
}

// controllersConfig returns nil if no controller is enabled.
func (o *options) controllersConfig() (*server.Controllers, error) {
	if len(o.enabled) == 0 {
		return nil, nil
	}
	api, err := rest.InClusterConfig()
	if o.kubeconfig != "" {
		api, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot configure access to the API server for controllers: %w; outside a cluster, set --kubeconfig", err)
	}
	api.QPS = -1 // no limit here: the API server limits its clients itself
	config := controllers.Config{
		Names:                   o.enabled,
		LeaderElection:          o.leaderElect,
		LeaderElectionNamespace: o.leaderElectionNamespace,
		Concurrency:             o.concurrency,
		CallTimeout:             o.callTimeout,
		CallsPerProvider:        o.callsPerProvider,
		ClaimNamespace:          o.claimNamespace,
	}
	if slices.Contains(o.enabled, operation.ControllerName) {
		config.Providers = map[string]operation.Provider{}
		if slices.Contains(o.registered(), simulated.Name) {
			if config.Providers[simulated.Name], err = o.simulatedProvider(api); err != nil {
				return nil, err
			}
		}
		if config.UserData, err = o.userData(); err != nil {
			return nil, err
		}
	}
	set := controllers.New(api, config)
	manager, err := set.ManagerOptions()
	return &server.Controllers{API: api, Options: manager, Add: set.AddTo, Ready: set.Ready}, err
}

// registered returns the names of the providers. Simulated is only one when asked for:
// a Machine that was copied from an example must not seem to be replaced.
func (o *options) registered() []string {
	if o.simulated != "" && !slices.Contains(o.providers, simulated.Name) {
		return append(o.providers, simulated.Name)
	}
	return o.providers
}

func (o *options) userData() (*operation.UserData, error) {
	var template []byte // the built-in one
	if o.userDataTemplate != "" {
		var err error
		if template, err = os.ReadFile(o.userDataTemplate); err != nil {
			return nil, fmt.Errorf("--user-data-template: %w", err)
		}
	}
	return operation.NewUserData(template)
}

func (o *options) simulatedProvider(api *rest.Config) (operation.Provider, error) {
	behaviour, err := simulated.ParseOptions(o.simulated)
	if err != nil {
		return nil, err
	}
	if behaviour.Dir != "" {
		return &simulated.Provider{Options: behaviour, Store: &simulated.DirStore{Dir: behaviour.Dir}}, nil
	}
	clientset, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	return &simulated.Provider{Options: behaviour, Store: simulated.ConfigMapStore{ConfigMaps: clientset.CoreV1().ConfigMaps(simulated.Namespace)}}, nil
}
