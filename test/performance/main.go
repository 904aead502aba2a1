// Command performance measures what hostformat costs on a local control plane,
// beside no admission at all, beside policies with the same rules, and beside a
// webhook that does nothing. It prints the lines of a Go benchmark, for
// benchstat, and draws plots. make bench runs it.
//
// All of these are installed at once, each for the objects of its own label, and
// take turns in every round: what disturbs the machine disturbs each of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "idle" {
		exitOn(serveIdle(os.Args[2:]))
		return
	}
	var o options
	flag.StringVar(&o.pictures, "pictures", "", "folder to draw the plots into; none are drawn without")
	flag.IntVar(&o.rounds, "rounds", 300, "rounds of requests")
	flag.IntVar(&o.machines, "machines", 100_000, "Machines to store for the growth of memory: 1000, 10000 and so on")
	flag.Parse()
	stored := 100
	for stored < o.machines {
		stored *= 10
	}
	if stored != o.machines || o.machines == 100 {
		exitOn(fmt.Errorf("-machines must be 1000, 10000 and so on, got %d", o.machines))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exitOn(run(ctx, o))
}

type options struct {
	pictures         string
	rounds, machines int
}

// run brings up what is measured, measures, and stops it again.
func run(ctx context.Context, o options) (err error) {
	t, err := newTestbed(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	m := &measurements{testbed: t, options: o, samples: map[position][]float64{}}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"single requests", m.requests},
		{"statuses of many targets", m.targets},
		{"objects of many bytes", m.sizes},
		{"many clients", m.clients},
		{"many Machines", m.stored},
		{"starts", m.starts},
	} {
		fmt.Fprintln(os.Stderr, "performance:", step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	m.compare(os.Stderr)
	if o.pictures == "" {
		return nil
	}
	return m.draw(o.pictures)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		os.Exit(1)
	}
}
