package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"

	"unbounded-cloud.io/hostformat/internal/admission"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// options are what the command line can say.
type options struct {
	host, certDir, clientCA       string
	port                          int
	healthAddress, metricsAddress string
	shutdownDelay                 time.Duration
	logFormat, logLevel           string

	webhook                 bool
	enforcement             string
	controllers             []string
	kubeconfig              string
	leaderElect             bool
	leaderElectionNamespace string
	concurrency             int
	claimNamespace          string
	callTimeout             time.Duration
	userDataTemplate        string
	simulated               string

	showVersion bool
}

const usage = `Serves the admission rules of hostformat: it trims host images, refuses formats
that are not CloudInit or Ignition, refuses an undeclared image on a host that
is known to run Ignition, and keeps the frozen pair of an operation as it is.

The webhook calls no API and needs no permission. The API server reaches it over
TLS with tls.crt and tls.key of --cert-dir; both are read again when they
change, and waited for while they are missing.

Controllers run only when --controllers names them; run them in a process of
their own, with --webhook=false:

  hostreplace           carries out HostReplace operations of Machines whose
                        provider is registered here (Simulated)
  machineconfiguration  cuts MachineConfigurationVersions; off by default

Usage:
  webhook [flags]

Flags:
`

// parse reads the command line. It returns pflag.ErrHelp, and neither options
// nor an error, once it has printed what was asked for.
func parse(args []string, stdout io.Writer) (*options, error) {
	o := &options{}
	flags := o.flags()
	flags.SetOutput(stdout)
	flags.Usage = func() { fmt.Fprint(stdout, usage+flags.FlagUsagesWrapped(100)) }
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if o.showVersion {
		fmt.Fprintln(stdout, version())
		return nil, nil
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return o, o.validate()
}

// flags are all that the command line takes, in the order of the help.
func (o *options) flags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("webhook", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.BoolVar(&o.webhook, "webhook", true, "serve the admission rules")
	flags.StringVar(&o.enforcement, "enforcement", string(admission.Deny), "what becomes of a write that breaks a rule: deny, warn, or warn-except-frozen, which warns but keeps frozen pairs and what has begun as they are")
	flags.StringSliceVar(&o.controllers, "controllers", nil, "controllers to run: * for all that are on by default, foo for the controller foo, -foo for all but it; empty for none")
	flags.StringVar(&o.certDir, "cert-dir", "/etc/hostformat/tls", "`folder` with tls.crt and tls.key")
	flags.StringVar(&o.clientCA, "client-ca", "", "`file` with the CA that a client must show a certificate of to reach the webhook; empty to let all reach it; read once, at the start")
	flags.StringVar(&o.host, "host", "", "`address` to serve the webhook on; empty for all")
	flags.IntVar(&o.port, "port", 9443, "`port` to serve the webhook on")
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "`address` for /healthz, /readyz and /startz, without TLS")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "`address` for /metrics, with TLS; 0 for none")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how controllers reach the API server; empty inside a cluster")
	flags.BoolVar(&o.leaderElect, "leader-elect", false, "run controllers in one process of several; never together with the webhook")
	flags.StringVar(&o.leaderElectionNamespace, "leader-election-namespace", "", "`namespace` of the Lease; empty for that of the pod")
	flags.IntVar(&o.concurrency, "concurrent-operations", 4, "how many operations are worked on at once")
	flags.StringVar(&o.claimNamespace, "claim-namespace", resolve.DefaultClaimNamespace, "`namespace` of the Leases that say which operation may replace which host; the same for all processes that replace these hosts")
	flags.DurationVar(&o.callTimeout, "provider-call-timeout", 2*time.Minute, "how long one call of a provider may take, with the reads right before it")
	flags.StringVar(&o.userDataTemplate, "user-data-template", "", "`file` with the cloud-config that a replaced host boots with; empty for the built-in one")
	flags.StringVar(&o.simulated, "simulated-provider", "", "how provider Simulated misbehaves: a list of delay=D, duration=D, fail=N, lose-answer, forget-keys, broken=IMAGE, dir=FOLDER")
	flags.DurationVar(&o.shutdownDelay, "shutdown-delay", 10*time.Second, "how long to go on serving, unready, after a signal to stop, so that clients find another replica first: half of it for the nodes to hear of it, half to close connections")
	flags.StringVar(&o.logFormat, "log-format", "json", "json or text")
	flags.StringVar(&o.logLevel, "log-level", "info", "info or debug")
	flags.BoolVar(&o.showVersion, "version", false, "print the version and exit")
	return flags
}

func (o *options) validate() error {
	if o.port < 1 || o.port > 65535 {
		return fmt.Errorf("--port must be between 1 and 65535, got %d", o.port)
	}
	if o.shutdownDelay < 0 {
		return fmt.Errorf("--shutdown-delay may not be negative, got %s", o.shutdownDelay)
	}
	if err := o.validateControllers(); err != nil {
		return err
	}
	addresses := map[string]string{"--health-probe-bind-address": o.healthAddress}
	if o.metricsAddress != "0" {
		addresses["--metrics-bind-address"] = o.metricsAddress
	}
	for name, address := range addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("%s must be HOST:PORT or :PORT, got %q", name, address)
		}
	}
	for name, choice := range map[string]struct {
		value string
		legal []string
	}{
		"--log-format":  {o.logFormat, []string{"json", "text"}},
		"--log-level":   {o.logLevel, []string{"info", "debug"}},
		"--enforcement": {o.enforcement, admission.Enforcements},
	} {
		if !slices.Contains(choice.legal, choice.value) {
			return fmt.Errorf("%s must be %s, got %q", name, strings.Join(choice.legal, " or "), choice.value)
		}
	}
	return nil
}

// logger writes to standard error, one line a record.
func (o *options) logger(w io.Writer) logr.Logger {
	handler := &slog.HandlerOptions{}
	if o.logLevel == "debug" {
		handler.Level = slog.Level(-5) // the level at which controller-runtime logs every call
	}
	if o.logFormat == "text" {
		return logr.FromSlogHandler(slog.NewTextHandler(w, handler))
	}
	return logr.FromSlogHandler(slog.NewJSONHandler(w, handler))
}

// tls is how a server speaks TLS: nothing below TLS 1.2, nothing without forward
// secrecy and authenticated encryption.
func (o *options) tls(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		GetCertificate: certificate,
		MinVersion:     tls.VersionTLS12,
		CipherSuites: []uint16{ // of TLS 1.2; those of 1.3 are all of this kind
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		NextProtos: []string{"http/1.1"},
	}
}

// release and commit are set by make build: the version of the checkout, and
// its commit.
var release, commit string

// version is what make build recorded, or else what the Go toolchain did.
func version() string {
	if release != "" {
		return release + " (commit " + commit + ")"
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return info.Main.Version + " (commit " + setting.Value + ")"
		}
	}
	return info.Main.Version
}
