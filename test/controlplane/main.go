// Command controlplane finds or makes the programs of a local control plane
// (etcd, kube-apiserver, kubectl) and prints the folder that holds them, for
// use as KUBEBUILDER_ASSETS. Everything else it says goes to standard error.
//
// It tries four sources, in this order, and says which one it chose:
//
//  1. KUBEBUILDER_ASSETS, if set;
//  2. the cache of an earlier build, below os.UserCacheDir;
//  3. setup-envtest, which downloads what the Kubernetes project publishes;
//  4. a build from the Go modules that go.mod beside this file pins.
//
// Only the standard library is imported here, so that running this command
// does not first fetch the dependencies of Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// programs are the files that a folder of assets must hold, and the packages
// that they are built from.
var programs = []struct{ name, pkg string }{
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
}

// downloadTimeout bounds setup-envtest, which on a machine that reaches no
// download site may hang instead of failing.
const downloadTimeout = 3 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := assets(ctx)
	if err != nil {
		say("error: %v", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "control plane: "+format+"\n", args...)
}

// assets returns the folder that holds all programs.
func assets(ctx context.Context) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		if missing := missingIn(dir); len(missing) > 0 {
			return "", fmt.Errorf("KUBEBUILDER_ASSETS=%s lacks %s: add it there, or unset the variable to have it built", dir, strings.Join(missing, ", "))
		}
		say("using KUBEBUILDER_ASSETS=%s", dir)
		return dir, nil
	}

	kubernetes, err := pinned(ctx, "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	etcd, err := pinned(ctx, "go.etcd.io/etcd/server/v3")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: %w", err)
	}
	root := filepath.Join(cache, "hostformat", "controlplane")
	built := filepath.Join(root, fmt.Sprintf("kubernetes-%s-etcd-%s-%s-%s", kubernetes, etcd, runtime.GOOS, runtime.GOARCH))
	if len(missingIn(built)) == 0 {
		say("using the programs built before, in %s", built)
		return built, nil
	}

	dir, err := download(ctx, root, kubernetes)
	if err == nil {
		say("using the programs that setup-envtest provides, in %s", dir)
		return dir, nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	say("setup-envtest cannot provide them (%v)", err)

	if err := build(ctx, root, built, kubernetes); err != nil {
		return "", err
	}
	say("using the programs just built, in %s", built)
	return built, nil
}

func missingIn(dir string) []string {
	var missing []string
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(dir, p.name)); err != nil {
			missing = append(missing, p.name)
		}
	}
	return missing
}

// pinned returns the version of a module in the go.mod beside this file.
func pinned(ctx context.Context, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("cannot read the version of %s: %w", module, withStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// download asks setup-envtest for the newest patch release of the pinned
// minor version of Kubernetes.
func download(ctx context.Context, root, kubernetes string) (string, error) {
	parts := strings.SplitN(strings.TrimPrefix(kubernetes, "v"), ".", 3)
	if len(parts) < 2 {
		return "", fmt.Errorf("%q is not a version of Kubernetes", kubernetes)
	}
	say("asking setup-envtest for Kubernetes %s.%s (at most %s)", parts[0], parts[1], downloadTimeout)
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "tool", "setup-envtest", "use",
		"--bin-dir", root, "-p", "path", parts[0]+"."+parts[1]+".x")
	out, err := cmd.Output()
	if err != nil {
		return "", withStderr(err)
	}
	dir := strings.TrimSpace(string(out))
	if missing := missingIn(dir); len(missing) > 0 {
		return "", fmt.Errorf("%s lacks %s", dir, strings.Join(missing, ", "))
	}
	return dir, nil
}

// withStderr adds the last line that a failed command printed.
func withStderr(err error) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
	return fmt.Errorf("%w: %s", err, lines[len(lines)-1])
}
