package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/certs"
)

const loopback = "127.0.0.1"

// process is a running webhook.
type process struct {
	cmd          *exec.Cmd
	port, health int
	done         chan struct{}
	err          error // valid once done is closed
}

// Controllers prepares a process that runs controllers only, against the API
// server that a kubeconfig names.
func (c *Cluster) Controllers(kubeconfig, names string, args ...string) *exec.Cmd {
	cmd := exec.Command(c.Program("webhook"), append([]string{
		"--webhook=false", "--controllers", names, "--kubeconfig", kubeconfig, "--providers", "Simulated",
		"--health-probe-bind-address", net.JoinHostPort(loopback, "0"), "--metrics-bind-address", "0",
		"--shutdown-delay", "0s", "--log-format", "text",
	}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// buildPrograms builds the programs of this project into a folder of the checkout that
// test processes share. A lock keeps them apart. The Go tool links a program only if it
// has changed.
func (c *Cluster) buildPrograms(ctx context.Context) error {
	built.Lock()
	defer built.Unlock()
	if built.done {
		return nil
	}
	dir := c.programs()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer lock.Close() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", dir, "./cmd/...")
	cmd.Dir, cmd.Env = c.Root, append(os.Environ(), "CGO_ENABLED=0")
	if os.Getenv(raceVariable) != "" {
		cmd.Args, cmd.Env = slices.Insert(cmd.Args, 2, "-race"), nil
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building: %w: %s", err, out)
	}
	built.done = true
	return nil
}

// built says whether this process has built the programs.
var built struct {
	sync.Mutex
	done bool
}

const raceVariable = "HOSTFORMAT_RACE"

func (c *Cluster) programs() string {
	if os.Getenv(raceVariable) != "" {
		return filepath.Join(c.Root, "bin", "test-race")
	}
	return filepath.Join(c.Root, "bin", "test")
}

// Program is the path of a program of this project, as it is built for tests.
func (c *Cluster) Program(name string) string { return filepath.Join(c.programs(), name) }

// StartWebhook starts the webhook unless it runs, on the same port each time,
// and waits until it is ready. More flags win over those that it has.
func (c *Cluster) StartWebhook(ctx context.Context, args ...string) error {
	if c.webhook != nil && !c.webhook.ended() {
		return nil
	}
	if err := c.mintCertificate(); err != nil {
		return err
	}
	p := &process{done: make(chan struct{})}
	if c.webhook != nil {
		p.port, p.health = c.webhook.port, c.webhook.health
	} else {
		var err error
		if p.port, err = FreePort(); err != nil {
			return err
		}
		if p.health, err = FreePort(); err != nil {
			return err
		}
	}
	p.cmd = exec.Command(c.Program("webhook"), append([]string{
		"--cert-dir", c.dir, "--host", loopback, "--port", strconv.Itoa(p.port),
		"--health-probe-bind-address", loopbackAddress(p.health),
		"--metrics-bind-address", "0", "--shutdown-delay", "0s", "--log-format", "text",
		"--controllers", c.options.Controllers, "--kubeconfig", c.Kubeconfig, "--providers", "Simulated", "--simulated-provider", c.options.Simulated,
	}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = c.log, c.log
	// Ctrl-C reaches every process of a terminal; this one is stopped by us, when
	// it is its turn.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	c.webhook = p
	return c.waitUntilReady(ctx, p)
}

func (c *Cluster) waitUntilReady(ctx context.Context, p *process) error {
	url := "http://" + loopbackAddress(p.health) + "/readyz"
	last := errors.New("no answer yet")
	err := wait.PollUntilContextTimeout(ctx, pollInterval, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		if p.ended() {
			return false, fmt.Errorf("it ended: %w", p.err)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			last = err
			return false, nil
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		last = errors.New(string(body))
		return response.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		return fmt.Errorf("the webhook does not become ready: %w (%w)", err, last)
	}
	return nil
}

// StopWebhook ends the webhook gracefully, if it runs.
func (c *Cluster) StopWebhook() error { return c.endWebhook(syscall.SIGTERM) }

// KillWebhook ends the webhook as a crash does, if it runs.
func (c *Cluster) KillWebhook() error { return c.endWebhook(syscall.SIGKILL) }

func (c *Cluster) endWebhook(signal syscall.Signal) error {
	if c.webhook == nil || c.webhook.ended() {
		return nil
	}
	if err := c.webhook.cmd.Process.Signal(signal); err != nil {
		return err
	}
	<-c.webhook.done
	if signal == syscall.SIGTERM {
		return c.webhook.err
	}
	return nil
}

// Done is closed when the webhook has ended, for whatever reason.
func (c *Cluster) Done() <-chan struct{} { return c.webhook.done }

// WebhookPID is the process of the webhook, while it runs.
func (c *Cluster) WebhookPID() int { return c.webhook.cmd.Process.Pid }

// RenewCertificate replaces the serving pair of the webhook by another one of
// the same authority.
func (c *Cluster) RenewCertificate() error { return c.mintCertificate() }

func (c *Cluster) mintCertificate() (err error) {
	if c.ca == nil {
		if c.ca, err = certs.NewCA(); err != nil {
			return err
		}
	}
	return c.ca.IssueTo(c.dir, 24*time.Hour, append(certs.DNSNames(), loopback)...)
}

// ClientConfig leads the API server to the process at a path.
func (c *Cluster) ClientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	url := fmt.Sprintf("https://%s:%d%s", loopback, c.webhook.port, path)
	return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: c.ca.PEM}
}

// WebhookConfigurations returns what manifests/base/webhook.yaml ships, with nothing
// changed but the client configuration and, if every write is to be sent to the
// webhook, the conditions.
func (c *Cluster) WebhookConfigurations() (*admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	text, err := os.ReadFile(filepath.Join(c.Root, "manifests", "base", "webhook.yaml"))
	if err != nil {
		return nil, nil, err
	}
	documents := strings.Split(string(text), "\n---\n")
	if len(documents) != 2 {
		return nil, nil, fmt.Errorf("manifests/base/webhook.yaml holds %d documents, want 2", len(documents))
	}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := yaml.UnmarshalStrict([]byte(documents[0]), mutating); err != nil {
		return nil, nil, err
	}
	if err := yaml.UnmarshalStrict([]byte(documents[1]), validating); err != nil {
		return nil, nil, err
	}
	for i := range mutating.Webhooks {
		w := &mutating.Webhooks[i]
		w.ClientConfig = c.ClientConfig(*w.ClientConfig.Service.Path)
		if c.options.EveryWrite {
			w.MatchConditions = nil
		}
	}
	for i := range validating.Webhooks {
		w := &validating.Webhooks[i]
		w.ClientConfig = c.ClientConfig(*w.ClientConfig.Service.Path)
		if c.options.EveryWrite {
			w.MatchConditions = nil
		}
	}
	return mutating, validating, nil
}
