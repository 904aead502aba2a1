package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/internal/admission"
	"unbounded-cloud.io/hostformat/internal/server"
	"unbounded-cloud.io/hostformat/test/local"
)

const patience, interval = time.Minute, 20 * time.Millisecond

func TestCommandLine(t *testing.T) {
	for name, test := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"help":            {[]string{"--help"}, 0, "--shutdown-delay duration", ""},
		"version":         {[]string{"--version"}, 0, "\n", ""},
		"unknown flag":    {[]string{"--foo"}, 2, "", "webhook: unknown flag: --foo; see webhook --help\n"},
		"argument":        {[]string{"x"}, 2, "", `unexpected argument "x"`},
		"port":            {[]string{"--port=70000"}, 2, "", "--port must be between 1 and 65535, got 70000"},
		"delay":           {[]string{"--shutdown-delay=-1s"}, 2, "", "--shutdown-delay may not be negative"},
		"health address":  {[]string{"--health-probe-bind-address=8081"}, 2, "", `--health-probe-bind-address must be HOST:PORT or :PORT, got "8081"`},
		"metrics address": {[]string{"--metrics-bind-address=x"}, 2, "", "--metrics-bind-address must be"},
		"log format":      {[]string{"--log-format=xml"}, 2, "", `--log-format must be json or text, got "xml"`},
		"log level":       {[]string{"--log-level=loud"}, 2, "", `--log-level must be info or debug, got "loud"`},
		"enforcement":     {[]string{"--enforcement=x"}, 2, "", `--enforcement must be deny or warn or warn-except-frozen, got "x"`},
		"controller":      {[]string{"--controllers=x"}, 2, "", `--controllers: unknown controller "x": must be one of hostreplace, machineconfiguration`},
		"nothing to run":  {[]string{"--webhook=false"}, 2, "", "--webhook=false requires --controllers"},
		"leader, webhook": {[]string{"--leader-elect", "--controllers=*"}, 2, "", "--leader-elect requires --webhook=false"},
		"leader of none":  {[]string{"--leader-elect", "--webhook=false", "--controllers=-hostreplace"}, 2, "", "--webhook=false requires --controllers"},
		"concurrency":     {[]string{"--concurrent-operations=0"}, 2, "", "--concurrent-operations must be at least 1, got 0"},
		"call timeout":    {[]string{"--provider-call-timeout=0s"}, 2, "", "--provider-call-timeout must be greater than 0, got 0s"},
		"claims":          {[]string{"--claim-namespace=X"}, 2, "", `--claim-namespace must be the name of a namespace, got "X"`},
		"simulated":       {[]string{"--simulated-provider=x"}, 2, "", "--simulated-provider: "},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.code, run(t.Context(), test.args, &stdout, &stderr))
			require.Contains(t, stdout.String(), test.stdout)
			require.Contains(t, stderr.String(), test.stderr)
			if test.code != 0 {
				require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line")
			}
		})
	}
}

// Every flag of the server reaches its configuration. Without controllers, that
// needs no API server.
func TestServerConfig(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want server.Config
	}{
		"defaults": {nil, server.Config{
			Webhook:        &server.Webhook{Address: ":9443", CertDir: "/etc/hostformat/tls", Enforcement: admission.Deny},
			HealthAddress:  ":8081",
			MetricsAddress: ":8443",
			ShutdownDelay:  10 * time.Second,
		}},
		"all": {[]string{"--host=::1", "--port=1", "--cert-dir=d", "--client-ca=c", "--enforcement=warn",
			"--health-probe-bind-address=:2", "--metrics-bind-address=0", "--shutdown-delay=3s"}, server.Config{
			Webhook:        &server.Webhook{Address: "[::1]:1", CertDir: "d", ClientCA: "c", Enforcement: admission.Warn},
			HealthAddress:  ":2",
			MetricsAddress: "0",
			ShutdownDelay:  3 * time.Second,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(test.args, io.Discard)
			require.NoError(t, err)
			config, err := o.config(logr.Discard())
			require.NoError(t, err)
			test.want.Logger = logr.Discard()
			require.Equal(t, test.want, config)
		})
	}
}

func TestControllersConfig(t *testing.T) {
	o, err := parse([]string{"--webhook=false", "--controllers=*,machineconfiguration", "--kubeconfig", kubeconfig(t), "--leader-elect", "--leader-election-namespace=n"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"hostreplace", "machineconfiguration"}, o.enabled)
	config, err := o.config(logr.Discard())
	require.NoError(t, err)
	require.Nil(t, config.Webhook)
	require.Equal(t, "https://127.0.0.1:1", config.Controllers.API.Host)
	require.True(t, config.Controllers.Options.LeaderElection)
	require.True(t, config.Controllers.Options.LeaderElectionReleaseOnCancel)
	require.Equal(t, "n/hostformat-controllers", config.Controllers.Options.LeaderElectionResourceLockInterface.Describe())
	require.Greater(t, *config.Controllers.Options.GracefulShutdownTimeout, 2*time.Minute, "it waits for a call")
}

func TestControllersConfigIsWrong(t *testing.T) {
	for name, test := range map[string]struct{ arg, stderr string }{
		"no kubeconfig": {"--kubeconfig=/no/such/file", "webhook: cannot configure access to the API server for controllers: "},
		"no user data":  {"--user-data-template=/no/such/file", "webhook: --user-data-template: open /no/such/file: no such file or directory\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			require.Equal(t, 1, run(t.Context(), []string{"--controllers=*", "--kubeconfig", kubeconfig(t), test.arg}, io.Discard, &stderr))
			require.Contains(t, stderr.String(), test.stderr)
		})
	}
}

func kubeconfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}"), 0o600))
	return path
}

// The webhook starts with the flags of the command line, and exits with 0 after a
// signal.
func TestRun(t *testing.T) {
	dir, port, health := t.TempDir(), freePort(t), freePort(t)
	ca, err := certs.NewCA()
	require.NoError(t, err)
	require.NoError(t, ca.IssueTo(dir, time.Hour, "127.0.0.1"))
	ctx, stop := context.WithCancel(t.Context())
	var stderr local.Log
	exit := make(chan int, 1)
	go func() {
		exit <- run(ctx, []string{"--cert-dir", dir, "--host=127.0.0.1", "--port", port, "--health-probe-bind-address", "127.0.0.1:" + health,
			"--metrics-bind-address=0", "--shutdown-delay=0s", "--log-format=text"}, io.Discard, &stderr)
	}()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		response, err := http.Get("http://127.0.0.1:" + health + "/readyz")
		if assert.NoError(c, err) {
			assert.NoError(c, response.Body.Close())
			assert.Equal(c, http.StatusOK, response.StatusCode)
		}
	}, patience, interval)
	stop()
	require.Zero(t, <-exit, stderr.String())
	require.Contains(t, stderr.String(), "msg=starting")
}

func TestAddressInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	var stderr local.Log
	require.Equal(t, 1, run(t.Context(), []string{"--cert-dir", t.TempDir(), "--metrics-bind-address=0",
		"--port", freePort(t), "--health-probe-bind-address", listener.Addr().String()}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "webhook: listen tcp "+listener.Addr().String()+": bind: address already in use")
}

func TestClientCAIsMissing(t *testing.T) {
	var stderr local.Log
	require.Equal(t, 1, run(t.Context(), []string{"--cert-dir", t.TempDir(), "--client-ca=/no/such/file", "--metrics-bind-address=0", "--shutdown-delay=0s",
		"--port", freePort(t), "--health-probe-bind-address=127.0.0.1:0"}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "webhook: failed to read the client CA: open /no/such/file: no such file or directory\n")
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := local.FreePort()
	require.NoError(t, err)
	return fmt.Sprint(port)
}
