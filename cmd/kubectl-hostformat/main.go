// Command kubectl-hostformat is a kubectl plugin that shows what hostformat
// would do: what a replacement would freeze, what enforcement would refuse, and
// what is wrong with manifests. It writes nothing.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"unbounded-cloud.io/hostformat/internal/plugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := plugin.Run(ctx, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}
