// Command kubectl-hostformat is a kubectl plugin that shows what hostformat
// would do: what a replacement would freeze, what enforcement would refuse, and
// what is wrong with manifests. It writes nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Exit codes.
const (
	exitFindings = 1 // something is, or would be, refused or changed
	exitTrouble  = 2 // the question could not be answered
)

// errFindings ends a command whose findings were printed.
var errFindings = errors.New("there are findings")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}

// run carries out a command line and returns the exit code.
func run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	root := newCommand(streams)
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFindings):
		return exitFindings
	case ctx.Err() != nil:
		fmt.Fprintln(streams.ErrOut, "error: interrupted")
	default:
		fmt.Fprintf(streams.ErrOut, "error: %s\n", visible(explained(err)))
	}
	return exitTrouble
}

func newCommand(streams genericiooptions.IOStreams) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-hostformat",
		Short: "See what hostformat would freeze, refuse and trim",
		Long: `See what hostformat would freeze, refuse and trim. Nothing is written.

Exit status: 0 clean, 1 with findings, 2 if the question could not be answered.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl hostformat"},
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return fmt.Errorf("%q is none of explain, audit and check; %s --help says what they do", args[0], cmd.CommandPath())
		},
		DisableFlagsInUseLine: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; %s --help lists them", err, cmd.CommandPath())
	})
	root.AddCommand(newExplain(streams), newAudit(streams), newCheck(streams))
	return root
}
