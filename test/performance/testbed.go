package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/test/local"
)

// What guards the objects that are labelled with it.
const (
	none       = "none"       // nothing
	policy     = "policy"     // policies.yaml
	idle       = "idle"       // a webhook that does nothing, at the same entries as every
	every      = "every"      // hostformat without its matchConditions
	hostformat = "hostformat" // hostformat as it ships
)

var guards = []string{none, policy, idle, every, hostformat}

// testbed is a control plane with all guards installed.
type testbed struct {
	cluster *local.Cluster
	idle    *exec.Cmd
	dir     string
	client  *rest.RESTClient
}

func newTestbed(ctx context.Context) (_ *testbed, err error) {
	t := &testbed{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.stop())
		}
	}()
	// The webhook's log of refusals is part of what a call costs, but not who
	// reads it.
	if t.cluster, err = local.Start(ctx, local.Options{Log: logged{}}); err != nil {
		return t, err
	}
	if err := t.cluster.RemoveWebhook(ctx); err != nil {
		return t, err
	}
	if t.dir, err = os.MkdirTemp("", "hostformat-performance-"); err != nil {
		return t, err
	}
	idleConfig, err := t.startIdle(ctx)
	if err != nil {
		return t, err
	}
	policies, err := os.ReadFile(filepath.Join(t.cluster.Root, "test", "performance", "policies.yaml"))
	if err != nil {
		return t, err
	}
	if out, err := t.cluster.Kubectl(ctx, policies, "apply", "-f", "-"); err != nil {
		return t, fmt.Errorf("%w: %s", err, out)
	}
	for _, guard := range []string{idle, every, hostformat} {
		if err := t.install(ctx, guard, idleConfig); err != nil {
			return t, err
		}
	}
	config := rest.CopyConfig(t.cluster.Config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	if t.client, err = newClient(config); err != nil {
		return t, err
	}
	return t, t.waitForGuards(ctx)
}

// logged shows what local says of its steps, and drops what the webhook logs.
type logged struct{}

func (logged) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("local cluster:")) {
		return os.Stderr.Write(p)
	}
	return len(p), nil
}

// install has the objects of a label travel as manifests/base/webhook.yaml says.
func (t *testbed) install(ctx context.Context, guard string, idleConfig func(string) admissionregistrationv1.WebhookClientConfig) error {
	mutating, validating, err := t.cluster.WebhookConfigurations()
	if err != nil {
		return err
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"bench": guard}}
	mutating.Name, validating.Name = guard, guard
	for i := range mutating.Webhooks {
		w := &mutating.Webhooks[i]
		w.ObjectSelector = selector
		if guard != hostformat {
			w.MatchConditions = nil
		}
		if guard == idle {
			w.ClientConfig = idleConfig("/mutate")
		}
	}
	for i := range validating.Webhooks {
		w := &validating.Webhooks[i]
		w.ObjectSelector = selector
		if guard != hostformat {
			w.MatchConditions = nil
		}
		if guard == idle {
			w.ClientConfig = idleConfig("/validate")
		}
	}
	for _, object := range []any{mutating, validating} {
		text, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		if out, err := t.cluster.Kubectl(ctx, text, "apply", "--server-side", "-f", "-"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// startIdle runs the webhook that does nothing, as a process of its own.
func (t *testbed) startIdle(ctx context.Context) (func(path string) admissionregistrationv1.WebhookClientConfig, error) {
	ca, err := certs.NewCA()
	if err != nil {
		return nil, err
	}
	if err := ca.IssueTo(t.dir, 24*time.Hour, "127.0.0.1"); err != nil {
		return nil, err
	}
	address, err := local.FreeAddress()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t.idle = exec.Command(self, "idle", address, t.dir)
	t.idle.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := t.idle.Start(); err != nil {
		return nil, err
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, connection.Close()
	})
	return func(path string) admissionregistrationv1.WebhookClientConfig {
		url := "https://" + address + path
		return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca.PEM}
	}, err
}

// waitForGuards waits until each guard does to a Machine what it should.
func (t *testbed) waitForGuards(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		for _, guard := range guards {
			body := machine("probe", guard, 0, "  img-a ")
			raw, err := t.client.Post().Resource("machines").Param("dryRun", "All").Body(body).DoRaw(ctx)
			if err != nil {
				return false, nil //nolint:nilerr // not yet
			}
			trims := guard == policy || guard == every || guard == hostformat
			if trims == bytes.Contains(raw, []byte(`"  img-a "`)) {
				return false, nil
			}
		}
		return true, nil
	})
}

func (t *testbed) stop() error {
	var errs []error
	if t.idle != nil && t.idle.Process != nil {
		errs = append(errs, t.idle.Process.Kill())
		_ = t.idle.Wait()
	}
	if t.cluster != nil {
		errs = append(errs, t.cluster.Stop())
	}
	if t.dir != "" {
		errs = append(errs, os.RemoveAll(t.dir))
	}
	return errors.Join(errs...)
}

// memory is what the webhook's process has resident now, and had at most, in
// bytes.
func (t *testbed) memory() (resident, peak float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.cluster.WebhookPID()))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		if name != "VmRSS" && name != "VmHWM" {
			continue
		}
		kilobytes, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		if err != nil {
			return 0, 0, err
		}
		if name == "VmRSS" {
			resident = kilobytes * 1024
		} else {
			peak = kilobytes * 1024
		}
	}
	return resident, peak, nil
}
