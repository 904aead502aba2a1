// Command demo is a tour of hostformat on a local cluster: it shows each
// command, the real output of kubectl, and an explanation. It fails if the output of
// a step is not as expected. See make demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"unbounded-cloud.io/hostformat/test/local"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	start := time.Now()
	logFile, err := os.CreateTemp("", "hostformat-demo-*.log")
	if err != nil {
		return err
	}
	defer os.Remove(logFile.Name())
	defer logFile.Close()

	fmt.Fprintln(out, "Starting a local cluster with the webhook. This takes a few seconds.")
	cluster, err := local.Start(ctx, local.Options{
		// A call takes a moment, which leaves time for an edit.
		Controllers: "*", Simulated: "delay=3s", Log: logFile,
	})
	if err != nil {
		log, _ := os.ReadFile(logFile.Name())
		return fmt.Errorf("%w\n%s", err, log)
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()

	steps, failed := 0, 0
	for _, chapter := range tour {
		fmt.Fprintf(out, "\n\n%s\n%s\n", chapter.title, strings.Repeat("=", len(chapter.title)))
		for _, s := range chapter.steps {
			steps++
			if err := s.take(ctx, cluster, out); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				failed++
				fmt.Fprintf(out, "\n  UNEXPECTED: %v\n", err)
			}
		}
	}
	fmt.Fprintln(out)
	if failed > 0 {
		return fmt.Errorf("%d of %d steps were not as expected", failed, steps)
	}
	fmt.Fprintf(out, "All %d steps were as expected, in %s. Now try it yourself: make dev\n", steps, time.Since(start).Round(time.Second))
	return nil
}

// step is one command of the tour.
type step struct {
	why     string
	agent   string // if set, run the agent with this installation config
	args    string // of kubectl, as a user types them
	stdin   string // a manifest, shown as typed
	refused bool   // the command has to fail
	says    []string
	not     []string
}

// take shows the step and runs it.
func (s step) take(ctx context.Context, cluster *local.Cluster, out io.Writer) error {
	fmt.Fprintf(out, "\n# %s\n", s.why)
	if s.agent != "" {
		return s.report(ctx, cluster, out)
	}
	fmt.Fprintf(out, "$ kubectl %s", s.args)
	if s.stdin != "" {
		fmt.Fprintf(out, " <<EOF\n%s\nEOF", strings.TrimSpace(s.stdin))
	}
	fmt.Fprintln(out)
	args, err := words(s.args)
	if err != nil {
		return err
	}
	cmd := cluster.Command(ctx, args...)
	cmd.Stdin = strings.NewReader(s.stdin)
	cmd.Dir = filepath.Dir(cluster.Kubeconfig)
	return s.judge(cmd, out)
}

// report runs the agent, as a host would.
func (s step) report(ctx context.Context, cluster *local.Cluster, out io.Writer) error {
	dir := filepath.Dir(cluster.Kubeconfig)
	if err := os.WriteFile(filepath.Join(dir, "agent.json"), []byte(s.agent), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(out, "$ cat agent.json\n  %s\n$ agent report --config agent.json\n", s.agent)
	cmd := exec.CommandContext(ctx, cluster.Program("agent"), "report", "--config", "agent.json", "--kubeconfig", cluster.Kubeconfig)
	cmd.Dir = dir
	return s.judge(cmd, out)
}

// judge runs a command, shows its output, and returns an error if that is not as
// expected.
func (s step) judge(cmd *exec.Cmd, out io.Writer) error {
	output, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(output))
	for line := range strings.Lines(text) {
		fmt.Fprintf(out, "  %s", line)
	}
	fmt.Fprintln(out)

	switch {
	case s.refused && err == nil:
		return errors.New("this had to be refused")
	case !s.refused && err != nil:
		return fmt.Errorf("this should have succeeded: %w", err)
	}
	for _, words := range s.says {
		if !strings.Contains(text, words) {
			return fmt.Errorf("the output should say %q", words)
		}
	}
	for _, words := range s.not {
		if strings.Contains(text, words) {
			return fmt.Errorf("the output should not say %q", words)
		}
	}
	return nil
}

// words splits a command line; single quotes hold a word together.
func words(line string) ([]string, error) {
	var words []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	if strings.Count(line, "'")%2 == 1 {
		return nil, fmt.Errorf("a quote is left open: %s", line)
	}
	return words, nil
}
