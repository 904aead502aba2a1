// Command agent reports from a host which format it was installed with.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"unbounded-cloud.io/hostformat/internal/agent"
)

// Exit codes, for a systemd unit to tell what is worth another try.
const (
	exitTryAgain = 1
	exitUsage    = 2 // of the command line or the installation config
	exitRefused  = 3 // by the API server
)

const usage = `Reports the format that a host was installed with to status.
observedProvisioningFormat of its Machine, which is created if it is missing.
What the installation config does not say is not reported.

Usage:
  agent report --config FILE [flags]

The config is JSON or YAML:
  MachineName: worker-1
  ProvisioningFormat: ignition   # or cloud-init; optional

Exit codes: 0 done; 1 the API server could not be reached in time, or how to
reach it is not known yet, try again;
2 the command line or the config is wrong; 3 the API server refuses, for lack of
permission or because its CRDs are too old.

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags.SetOutput(stdout)
	flags.Usage = func() { fmt.Fprint(stdout, usage+flags.FlagUsagesWrapped(100)) }
	configPath := flags.String("config", "", "installation config `file`")
	kubeconfig := flags.String("kubeconfig", "", "`file` that says how to reach the API server; empty for KUBECONFIG, or inside a cluster")
	timeout := flags.Duration("timeout", 2*time.Minute, "how long to try")
	dryRun := flags.Bool("dry-run", false, "say what would be done, and write nothing")
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "agent: %v\n", err)
		return code
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return fail(exitUsage, fmt.Errorf("%w; see agent --help", err))
	case flags.NArg() != 1 || flags.Arg(0) != "report":
		return fail(exitUsage, errors.New("there is one command, report; see agent --help"))
	case *configPath == "":
		return fail(exitUsage, errors.New("--config must name the installation config"))
	}
	config, err := agent.ReadConfig(*configPath)
	if err != nil {
		return fail(exitUsage, err)
	}
	client, err := newClient(*kubeconfig)
	if err != nil {
		return fail(exitTryAgain, err) // early in a boot it may not be there yet
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	reporter := &agent.Reporter{Client: client, DryRun: *dryRun, Say: func(format string, args ...any) {
		fmt.Fprintf(stdout, "agent: "+format+"\n", args...)
	}}
	switch err := reporter.Report(ctx, config); {
	case errors.Is(err, agent.ErrRefused):
		return fail(exitRefused, err)
	case err != nil:
		return fail(exitTryAgain, err)
	}
	return 0
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
		return nil, fmt.Errorf("cannot tell how to reach the API server: %w; set --kubeconfig", err)
	}
	return dynamic.NewForConfig(config)
}
