// Command webhook serves the admission webhook of hostformat, runs its
// controllers, or does both.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"unbounded-cloud.io/hostformat/internal/server"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// release and commit are set by make build.
var release, commit string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal starts the shutdown. A second one ends the process immediately.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// setLoggers guards the loggers of the libraries. They are global, and must not
// be set while they are in use.
var setLoggers sync.Once

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "webhook: %v; see webhook --help\n", err)
		return exitUsage
	case o.showVersion:
		fmt.Fprintln(stdout, version())
		return 0
	}
	log := logger(stderr, o.logFormat, o.logLevel)
	setLoggers.Do(func() {
		ctrl.SetLogger(log)
		klog.SetLogger(log)
	})
	config, err := o.config(log)
	if err == nil {
		log.Info("starting", "version", version(), "webhook", o.webhook, "controllers", o.enabled, "providers", o.registered())
		err = server.Run(ctx, config)
	}
	if err != nil {
		fmt.Fprintf(stderr, "webhook: %v\n", err)
		return exitFailure
	}
	return 0
}

// logger writes one line for each record.
func logger(w io.Writer, format, level string) logr.Logger {
	options := &slog.HandlerOptions{}
	if level == "debug" {
		options.Level = slog.Level(-5) // at which controller-runtime logs every call
	}
	if format == "text" {
		return logr.FromSlogHandler(slog.NewTextHandler(w, options))
	}
	return logr.FromSlogHandler(slog.NewJSONHandler(w, options))
}

// version returns what make build recorded, or what the Go toolchain did.
func version() string {
	if release != "" {
		return release + " (commit " + commit + ")"
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return info.Main.Version + " (commit " + setting.Value + ")"
		}
	}
	return info.Main.Version
}
