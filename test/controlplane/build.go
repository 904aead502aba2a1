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
// that something happens, rarely enough to keep a CI log short.
const progressEvery = 15 * time.Second

// build compiles all programs into a folder beside c.built and renames it, so
// that an interrupted build never looks like a finished one.
func (c *cache) build(ctx context.Context) error {
	say("building %d programs from their Go modules: about 10 minutes on 2 cores, once", len(programs))
	tmp, err := c.temporary()
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, p := range programs {
		if err := compile(ctx, ".", p.name, p.pkg, c.kubernetes, filepath.Join(tmp, p.name)); err != nil {
			return fmt.Errorf("building %s: %w", p.name, err)
		}
	}
	if err := os.RemoveAll(c.built); err != nil {
		return err
	}
	return os.Rename(tmp, c.built)
}

// temporary makes a folder that can be renamed into the cache.
func (c *cache) temporary() (string, error) {
	if err := os.MkdirAll(c.root, 0o755); err != nil {
		return "", err
	}
	return os.MkdirTemp(c.root, ".building-*")
}

// The oldest kubectl that the documentation promises has a module of its own,
// because one module cannot contain two versions of Kubernetes. It is built into
// a folder with this prefix and its version, so that it can be called kubectl.
const (
	oldKubectlModule = "kubectl-1.31"
	oldKubectlFolder = "kubectl-"
)

// provideOldKubectl builds the old kubectl inside a folder of programs.
func (c *cache) provideOldKubectl(ctx context.Context, dir string) error {
	version, err := pinned(ctx, oldKubectlModule, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	target := filepath.Join(dir, oldKubectlFolder+version)
	if _, err := os.Stat(filepath.Join(target, "kubectl")); err == nil {
		return nil
	}
	say("building kubectl %s from its Go module: about 3 minutes on 2 cores, once", version)
	tmp, err := c.temporary()
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := compile(ctx, oldKubectlModule, "kubectl "+version, "k8s.io/kubernetes/cmd/kubectl", version, filepath.Join(tmp, "kubectl")); err != nil {
		return fmt.Errorf("building kubectl %s: %w", version, err)
	}
	older, err := filepath.Glob(filepath.Join(dir, oldKubectlFolder+"*"))
	if err != nil {
		return err
	}
	for _, folder := range older { // of another version
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	return os.Rename(tmp, target)
}

// linkerFlags tell a program of Kubernetes its version. Without them it reports a
// development version.
func linkerFlags(kubernetes string) string {
	version := strings.SplitN(strings.TrimPrefix(kubernetes, "v"), ".", 3)
	const pkg = "k8s.io/component-base/version"
	return fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
		pkg, kubernetes, version[0], version[1])
}

// compile builds a program with the go.mod of a folder.
func compile(ctx context.Context, folder, name, pkg, kubernetes, output string) error {
	say("%s: fetching modules", name)
	list := exec.CommandContext(ctx, "go", "-C", folder, "list", "-deps", pkg)
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	deps, err := list.Output()
	if err != nil {
		return withStderr(err)
	}
	total := strings.Count(string(deps), "\n")

	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", "-C", folder, "build", "-v", "-trimpath", "-ldflags", linkerFlags(kubernetes), "-o", output, pkg)
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
	compiled, last := 0, "" // the last line contains the error
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
