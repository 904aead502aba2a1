// Package plugin is the kubectl plugin. It reads objects, asks the packages that
// decide (resolve for the controller, admission for the webhook), and prints their
// answers. It decides nothing itself, and writes nothing to a cluster.
//
// command.go is the command line. explain.go explains Machines (machine.go) and
// operations (operation.go), with the claims on their hosts (claims.go). audit.go
// and check.go report findings (findings.go) of a cluster and of manifests.
package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Exit codes.
const (
	exitFindings = 1 // something is, or would be, refused or changed
	exitTrouble  = 2 // the question could not be answered
)

// errFindings ends a command that has printed findings.
var errFindings = errors.New("there are findings")

// Run executes a command line and returns its exit code: 0 if nothing was found, 1
// with findings, 2 if the question could not be answered. It ends early if the
// context does.
func Run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
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
			return fmt.Errorf("unknown command %q: use explain, audit or check; see %s --help", args[0], cmd.CommandPath())
		},
		DisableFlagsInUseLine: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(newExplain(streams), newAudit(streams), newCheck(streams))
	return root
}
