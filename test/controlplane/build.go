package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// progressEvery is how often a line of progress appears: often enough to show
// that something happens, seldom enough to keep a CI log short.
const progressEvery = 15 * time.Second

// build compiles all programs into a folder beside target and renames it, so
// that an interrupted build never looks like a finished one.
func build(ctx context.Context, root, target, kubernetes string) error {
	say("building %d programs from their Go modules: about 10 minutes on 2 cores, once", len(programs))
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(root, ".building-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	// Without these kube-apiserver and kubectl report a development version.
	version := strings.SplitN(strings.TrimPrefix(kubernetes, "v"), ".", 3)
	const pkg = "k8s.io/component-base/version"
	ldflags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
		pkg, kubernetes, version[0], version[1])

	for _, p := range programs {
		if err := compile(ctx, p.name, p.pkg, ldflags, filepath.Join(tmp, p.name)); err != nil {
			return fmt.Errorf("building %s: %w", p.name, err)
		}
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	return os.Rename(tmp, target)
}

func compile(ctx context.Context, name, pkg, ldflags, output string) error {
	say("%s: fetching modules", name)
	list := exec.CommandContext(ctx, "go", "list", "-deps", pkg)
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	deps, err := list.Output()
	if err != nil {
		return withStderr(err)
	}
	total := strings.Count(string(deps), "\n")

	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-trimpath", "-ldflags", ldflags, "-o", output, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	// go build -v names each package that it compiles on standard error.
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(stderr); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	compiled, last := 0, "" // the last line says what went wrong
	for open := true; open; {
		var line string
		select {
		case line, open = <-lines:
			if open {
				compiled, last = compiled+1, line
			}
		case <-tick.C:
			say("%s: %d packages compiled, %d in all, %s", name, compiled, total, time.Since(start).Round(time.Second))
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, last)
	}
	say("%s: built in %s", name, time.Since(start).Round(time.Second))
	return nil
}
