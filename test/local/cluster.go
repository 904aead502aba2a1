// Package local runs the webhook as its own process beside a real etcd and
// kube-apiserver on this machine, with the manifests that clusters get. make
// dev, make demo and the end-to-end tests all stand on it.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"unbounded-cloud.io/hostformat/certs"
)

// Options say what a cluster is made of.
type Options struct {
	// CRDs is the folder of CRDs to install; empty for those of this project.
	CRDs string
	// Controllers are what the webhook's process runs besides, in the syntax of
	// its flag --controllers.
	Controllers string
	// Simulated is what its flag --simulated-provider says.
	Simulated string
	// APIServer are more flags of the API server, without their dashes.
	APIServer map[string]string
	// EveryWrite leaves out the matchConditions: the webhook is asked of every
	// write that its rules name.
	EveryWrite bool
	// Args are more flags of the webhook, which win over all others.
	Args []string
	// Log takes what is being done, one line each, and what the webhook logs.
	Log io.Writer
}

// Cluster is a running control plane with the webhook installed.
type Cluster struct {
	// Config reaches the API server as a cluster administrator.
	Config *rest.Config
	// Kubeconfig is a file that does the same for kubectl.
	Kubeconfig string
	// Root is the folder of this module.
	Root string

	options Options
	dir     string // temporary, of this cluster
	log     io.Writer
	env     *envtest.Environment
	ca      *certs.CA
	webhook *process
}

// Start starts a control plane from the programs that Assets finds, installs CRDs
// and webhook configurations, and starts the webhook. It returns once writes are
// trimmed and judged. Whatever it started is stopped again if it fails.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	c := &Cluster{options: o, log: o.Log, env: &envtest.Environment{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if c.Root, err = moduleRoot(ctx); err != nil {
		return nil, err
	}
	if _, err = Assets(ctx); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "hostformat-"); err != nil {
		return nil, err
	}
	if err = c.keepControlPlane(); err != nil {
		return nil, err
	}
	for flag, value := range o.APIServer {
		c.env.ControlPlane.GetAPIServer().Configure().Set(flag, value)
	}
	c.say("starting etcd and kube-apiserver")
	if c.Config, err = c.env.Start(); err != nil {
		return nil, err
	}
	if c.Kubeconfig, err = c.KubeconfigFor(c.dir, "hostformat-admin", "system:masters"); err != nil {
		return nil, err
	}
	if o.CRDs == "" {
		o.CRDs = filepath.Join(c.Root, "manifests", "crds")
	}
	c.say("installing the CRDs in %s", o.CRDs)
	if err := c.InstallCRDs(ctx, o.CRDs); err != nil {
		return nil, err
	}
	if out, err := c.Kubectl(ctx, nil, "create", "namespace", certs.Namespace); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	c.say("building and starting the webhook")
	if err := c.buildPrograms(ctx); err != nil {
		return nil, err
	}
	if err := c.StartWebhook(ctx, o.Args...); err != nil {
		return nil, err
	}
	c.say("installing manifests/base/webhook.yaml")
	return c, c.InstallWebhook(ctx)
}

// Connect returns a cluster that a kubeconfig names, where hostformat is
// installed already. Only Config, Kubeconfig, Root, Command and Kubectl are of
// use with it: nothing is started, and nothing has to be stopped.
func Connect(ctx context.Context, kubeconfig string) (*Cluster, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return &Cluster{Config: config, Kubeconfig: kubeconfig, Root: root}, nil
}

// Stop ends the webhook, then the control plane, and removes their files.
func (c *Cluster) Stop() error {
	errs := []error{c.StopWebhook(), c.env.Stop()}
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintf(c.log, "local cluster: "+format+"\n", args...)
}

// InstallCRDs applies a folder of CRDs and waits until the API server serves
// their kinds.
func (c *Cluster) InstallCRDs(ctx context.Context, dir string) error {
	how := "-f"
	if _, err := os.Stat(filepath.Join(dir, "kustomization.yaml")); err == nil {
		how = "-k"
	}
	if out, err := c.Kubectl(ctx, nil, "apply", "--server-side", how, dir); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if out, err := c.Kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// Command prepares a kubectl of this cluster: the one of KUBEBUILDER_ASSETS if it
// is set, otherwise the one on PATH.
func (c *Cluster) Command(ctx context.Context, args ...string) *exec.Cmd {
	kubectl := "kubectl"
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		kubectl = filepath.Join(assets, kubectl)
	}
	cmd := exec.CommandContext(ctx, kubectl, args...)
	// A short command takes a fifth less of the processors if it uses only one.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "GOMAXPROCS=1")
	return cmd
}

// Kubectl runs kubectl and returns all that it prints, trimmed.
func (c *Cluster) Kubectl(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd := c.Command(ctx, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// KubeconfigFor writes a kubeconfig of a user with groups into a folder, and
// returns its path.
func (c *Cluster) KubeconfigFor(dir, name string, groups ...string) (string, error) {
	user, err := c.env.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		return "", err
	}
	content, err := user.KubeConfig()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kubeconfig")
	return path, os.WriteFile(path, content, 0o600)
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "unbounded-cloud.io/hostformat").Output()
	if err != nil {
		return "", fmt.Errorf("this runs from a checkout of hostformat: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// pollInterval is the time between two checks of a state.
const pollInterval = 100 * time.Millisecond
