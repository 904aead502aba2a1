// Command agent reports the format that a host was installed with.
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

	"unbounded-cloud.io/hostformat/internal/agent"
)

// Exit codes, which tell a systemd unit whether another try can succeed.
const (
	exitTryAgain = 1
	exitUsage    = 2 // the command line or the installation config is wrong
	exitRefused  = 3 // the API server refuses
)

const usage = `Reports the format that a host was installed with, in status.observedProvisioningFormat
of its Machine. The agent creates the Machine if it does not exist. If the
installation config does not declare a format, nothing is reported.

Usage:
  agent report --config FILE [flags]

The config is JSON or YAML:
  MachineName: worker-1
  ProvisioningFormat: ignition   # or cloud-init; optional

Exit codes:
  0  done
  1  the API server was not reached in time, or there is no kubeconfig yet: try
     again
  2  the command line or the config is wrong
  3  the API server refuses: no permission, or its CRDs are too old

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	options, err := parse(args, stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	code := exitUsage
	if err == nil {
		if err = agent.Run(ctx, options); err == nil {
			return 0
		}
		code = exitCode(err)
	}
	fmt.Fprintf(stderr, "agent: %v\n", err)
	return code
}

func exitCode(err error) int {
	switch {
	case errors.Is(err, agent.ErrConfig):
		return exitUsage
	case errors.Is(err, agent.ErrRefused):
		return exitRefused
	default:
		return exitTryAgain
	}
}

// parse reads the command line. It returns pflag.ErrHelp after it printed the
// help.
func parse(args []string, stdout io.Writer) (agent.Options, error) {
	options := agent.Options{Say: func(format string, args ...any) {
		fmt.Fprintf(stdout, "agent: "+format+"\n", args...)
	}}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags.SetOutput(stdout)
	flags.Usage = func() { fmt.Fprint(stdout, usage+flags.FlagUsagesWrapped(100)) }
	flags.StringVar(&options.ConfigPath, "config", "", "installation config `file`")
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; empty uses KUBECONFIG, or the in-cluster configuration")
	flags.DurationVar(&options.Timeout, "timeout", 2*time.Minute, "how long to try")
	flags.BoolVar(&options.DryRun, "dry-run", false, "only print what would be done")
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return options, err
	case err != nil:
		return options, fmt.Errorf("%w; see agent --help", err)
	case flags.NArg() != 1 || flags.Arg(0) != "report":
		return options, errors.New("the only command is report; see agent --help")
	case options.ConfigPath == "":
		return options, errors.New("--config must name the installation config")
	}
	return options, nil
}
