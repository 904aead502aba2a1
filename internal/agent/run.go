package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrConfig means that the installation config cannot be used.
var ErrConfig = errors.New("cannot use the installation config")

// Options are what a run of the agent needs.
type Options struct {
	// ConfigPath is the file with the installation config.
	ConfigPath string
	// Kubeconfig is the file with which the agent connects to the API server. If
	// empty, it uses the file that KUBECONFIG names, or the in-cluster
	// configuration.
	Kubeconfig string
	// Timeout is how long to try.
	Timeout time.Duration
	// DryRun only says what would be done.
	DryRun bool
	// Say is called with what was done, and with errors before each retry.
	Say func(format string, args ...any)
}

// Run reads the installation config and reports it to the API server. It returns
// ErrConfig or ErrRefused if trying again is useless. After any other error, another
// try can succeed: early in the boot of a host there may be no kubeconfig yet.
func Run(ctx context.Context, options Options) error {
	config, err := ReadConfig(options.ConfigPath)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	client, err := newClient(options.Kubeconfig)
	if err != nil {
		return fmt.Errorf("cannot configure access to the API server: %w; set --kubeconfig", err)
	}
	ctx, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()
	reporter := &Reporter{Client: client, DryRun: options.DryRun, Say: options.Say}
	return reporter.Report(ctx, config)
}

func newClient(kubeconfig string) (dynamic.Interface, error) {
	if kubeconfig == "" {
		kubeconfig = os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	}
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(config)
}
