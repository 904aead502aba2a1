// Command controlplane finds or builds the programs of a local control plane
// (etcd, kube-apiserver, kubectl) and prints the folder that contains them, for
// use as KUBEBUILDER_ASSETS. All other output goes to standard error.
//
// It tries four sources, in this order, and says which one it uses:
//
//  1. KUBEBUILDER_ASSETS, if set;
//  2. the cache of an earlier build, below os.UserCacheDir;
//  3. setup-envtest, which downloads what the Kubernetes project publishes;
//  4. a build from the Go modules that go.mod beside this file pins.
//
// With -cached it downloads and builds nothing, and fails if neither of the first
// two sources has the programs. With -old-kubectl it also builds the oldest
// kubectl that the documentation promises, into a folder inside the cache.
//
// Only the standard library is imported here, so that running this command
// does not first fetch the dependencies of Kubernetes.
package main

import (
	"context"
	"errors"
	"flag"
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

// programs are the files that a folder of assets must contain, and the packages
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
	cachedOnly := flag.Bool("cached", false, "print the folder only if it exists already")
	withOldKubectl := flag.Bool("old-kubectl", false, "also build the oldest kubectl that the documentation promises")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := run(ctx, *cachedOnly, *withOldKubectl)
	if err != nil {
		say("error: %v", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

func run(ctx context.Context, cachedOnly, withOldKubectl bool) (string, error) {
	c, err := newCache(ctx)
	if err != nil {
		return "", err
	}
	given := os.Getenv("KUBEBUILDER_ASSETS")
	switch {
	case given != "":
		if missing := missingIn(given); len(missing) > 0 {
			return "", fmt.Errorf("KUBEBUILDER_ASSETS=%s lacks %s: add it there, or unset the variable to have it built", given, strings.Join(missing, ", "))
		}
		say("using KUBEBUILDER_ASSETS=%s", given)
		return given, nil
	case cachedOnly:
		return c.find()
	}
	dir, err := c.provide(ctx)
	if err == nil && withOldKubectl {
		err = c.provideOldKubectl(ctx, dir)
	}
	return dir, err
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "control plane: "+format+"\n", args...)
}

// cache is where the programs are kept.
type cache struct {
	root string
	// built is the folder of an earlier build. Its name contains the versions, so
	// that a new version is built beside the old one.
	built      string
	kubernetes string // the pinned version
}

func newCache(ctx context.Context) (*cache, error) {
	kubernetes, err := pinned(ctx, ".", "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	etcd, err := pinned(ctx, ".", "go.etcd.io/etcd/server/v3")
	if err != nil {
		return nil, err
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("no cache folder: %w", err)
	}
	root := filepath.Join(dir, "hostformat", "controlplane")
	built := filepath.Join(root, fmt.Sprintf("kubernetes-%s-etcd-%s-%s-%s", kubernetes, etcd, runtime.GOOS, runtime.GOARCH))
	return &cache{root: root, built: built, kubernetes: kubernetes}, nil
}

// find returns the folder that an earlier call of provide has filled.
func (c *cache) find() (string, error) {
	candidates := []string{c.built}
	if minor, err := c.minor(); err == nil { // setup-envtest has a folder for each patch release
		downloaded, _ := filepath.Glob(filepath.Join(c.root, "k8s", minor+".*-"+runtime.GOOS+"-"+runtime.GOARCH))
		candidates = append(candidates, downloaded...)
	}
	for _, dir := range candidates {
		if len(missingIn(dir)) == 0 {
			return dir, nil
		}
	}
	return "", fmt.Errorf("none is in %s", c.root)
}

// provide returns the folder that contains all programs.
func (c *cache) provide(ctx context.Context) (string, error) {
	if len(missingIn(c.built)) == 0 {
		say("using the programs built before, in %s", c.built)
		return c.built, nil
	}

	dir, err := c.download(ctx)
	if err == nil {
		say("using the programs that setup-envtest provides, in %s", dir)
		return dir, nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	say("setup-envtest cannot provide them (%v)", err)

	if err := c.build(ctx); err != nil {
		return "", err
	}
	say("using the programs just built, in %s", c.built)
	return c.built, nil
}

// minor returns the pinned version of Kubernetes without its patch release.
func (c *cache) minor() (string, error) {
	parts := strings.SplitN(strings.TrimPrefix(c.kubernetes, "v"), ".", 3)
	if len(parts) < 2 {
		return "", fmt.Errorf("%q is not a version of Kubernetes", c.kubernetes)
	}
	return parts[0] + "." + parts[1], nil
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

// pinned returns the version of a module in the go.mod of a folder.
func pinned(ctx context.Context, folder, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "-C", folder, "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("cannot read the version of %s: %w", module, withStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// download asks setup-envtest for the newest patch release of the pinned
// minor version of Kubernetes.
func (c *cache) download(ctx context.Context) (string, error) {
	minor, err := c.minor()
	if err != nil {
		return "", err
	}
	say("asking setup-envtest for Kubernetes %s (at most %s)", minor, downloadTimeout)
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "tool", "setup-envtest", "use",
		"--bin-dir", c.root, "-p", "path", minor+".x")
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
