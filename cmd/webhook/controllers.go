package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/configuration"
	"unbounded-cloud.io/hostformat/internal/operation"
	"unbounded-cloud.io/hostformat/internal/operation/simulated"
)

// controllers are all that there are, and whether * includes them.
var controllers = map[string]bool{
	operation.ControllerName:     true,
	configuration.ControllerName: false,
}

// enabled returns the controllers that --controllers chooses, in the syntax of
// kube-controller-manager.
func (o *options) enabled() []string {
	var names []string
	for name, onByDefault := range controllers {
		on := onByDefault && slices.Contains(o.controllers, "*")
		for _, word := range o.controllers {
			switch word {
			case name:
				on = true
			case "-" + name:
				on = false
			}
		}
		if on {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (o *options) validateControllers() error {
	for _, word := range o.controllers {
		if _, known := controllers[strings.TrimPrefix(word, "-")]; !known && word != "*" {
			return fmt.Errorf("--controllers names %q: there are %s and %s", word, operation.ControllerName, configuration.ControllerName)
		}
	}
	running := len(o.enabled()) > 0
	switch {
	case !o.webhook && !running:
		return errors.New("--webhook=false without --controllers leaves nothing to do")
	case o.leaderElect && o.webhook:
		return errors.New("--leader-elect needs --webhook=false: a process that loses its lease ends at once, and with it the calls that it is answering")
	case o.leaderElect && !running:
		return errors.New("--leader-elect needs --controllers")
	case o.concurrency < 1:
		return fmt.Errorf("--concurrent-operations must be at least 1, got %d", o.concurrency)
	case o.callTimeout <= 0:
		return fmt.Errorf("--provider-call-timeout must be above 0, got %s", o.callTimeout)
	case len(validation.IsDNS1123Label(o.claimNamespace)) > 0:
		return fmt.Errorf("--claim-namespace must be the name of a namespace, got %q", o.claimNamespace)
	}
	if _, err := simulated.ParseOptions(o.simulated); err != nil {
		return fmt.Errorf("--simulated-provider: %w", err)
	}
	return nil
}

// clientConfig says how to reach the API server. No part of the webhook calls
// it, so that it starts and answers while the API server is down: without
// controllers the configuration leads nowhere.
func (o *options) clientConfig() (*rest.Config, error) {
	if len(o.enabled()) == 0 {
		return &rest.Config{Host: "https://kubernetes.invalid"}, nil
	}
	config, err := rest.InClusterConfig()
	if o.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("controllers cannot reach an API server: %w; outside a cluster, set --kubeconfig", err)
	}
	config.QPS = -1 // the API server knows better than a guess of ours
	return config, nil
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha3.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // a programming error
		}
	}
	return s
}

// addControllers adds what --controllers chooses.
func (o *options) addControllers(mgr ctrl.Manager) error {
	for _, name := range o.enabled() {
		recorder := mgr.GetEventRecorder("hostformat-" + name)
		switch name {
		case configuration.ControllerName:
			r := &configuration.Reconciler{Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Recorder: recorder}
			if err := r.SetupWithManager(mgr); err != nil {
				return err
			}
		case operation.ControllerName:
			userData, err := o.userData()
			if err != nil {
				return err
			}
			provider, err := o.simulatedProvider(mgr)
			if err != nil {
				return err
			}
			machines, err := operation.MachineListerWatcher(mgr.GetConfig(), mgr.GetHTTPClient())
			if err != nil {
				return err
			}
			hosts := operation.NewHosts(machines)
			if err := mgr.Add(hosts); err != nil {
				return err
			}
			r := &operation.Reconciler{
				Live: mgr.GetAPIReader(), Cache: mgr.GetCache(), Hosts: hosts, Writer: mgr.GetClient(), Recorder: recorder,
				Providers: map[string]operation.Provider{simulated.Name: provider},
				UserData:  userData, Clock: clock.RealClock{},
				Backoff:        operation.Backoff{Base: time.Second, Cap: 5 * time.Minute},
				PollInterval:   2 * time.Second,
				CallTimeout:    o.callTimeout,
				ClaimNamespace: o.claimNamespace,
				MarkDeployed:   slices.Contains(o.enabled(), configuration.ControllerName),
			}
			if err := r.SetupWithManager(mgr, o.concurrency); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *options) userData() (*operation.UserData, error) {
	if o.userDataTemplate == "" {
		return operation.NewUserData(nil)
	}
	template, err := os.ReadFile(o.userDataTemplate)
	if err != nil {
		return nil, fmt.Errorf("--user-data-template: %w", err)
	}
	return operation.NewUserData(template)
}

func (o *options) simulatedProvider(mgr ctrl.Manager) (operation.Provider, error) {
	behaviour, err := simulated.ParseOptions(o.simulated)
	if err != nil {
		return nil, err
	}
	if behaviour.Dir != "" {
		return &simulated.Provider{Options: behaviour, Store: &simulated.DirStore{Dir: behaviour.Dir}}, nil
	}
	clientset, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return nil, err
	}
	return &simulated.Provider{Options: behaviour, Store: simulated.ConfigMapStore{ConfigMaps: clientset.CoreV1().ConfigMaps(simulated.Namespace)}}, nil
}
