package main

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"

	"unbounded-cloud.io/hostformat/internal/admission"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/server"
)

// options are the values of the flags.
type options struct {
	webhook                       bool
	enforcement                   string
	host, certDir, clientCA       string
	port                          int
	healthAddress, metricsAddress string
	shutdownDelay                 time.Duration
	logFormat, logLevel           string

	controllers             []string
	enabled                 []string // the controllers that these words enable
	kubeconfig              string
	leaderElect             bool
	leaderElectionNamespace string
	concurrency             int
	claimNamespace          string
	callTimeout             time.Duration
	callsPerProvider        int
	providers               []string
	userDataTemplate        string
	simulated               string

	showVersion bool
}

const usage = `Serves the admission webhook of hostformat. The webhook trims host images, denies
formats other than CloudInit and Ignition, denies an image without a format on a
host that is known to run Ignition, and protects the frozen pair of an operation.

The webhook calls no API and needs no permission. It serves the API server over
TLS, with tls.crt and tls.key in --cert-dir. It waits for these files, and reloads
them when they change.

Controllers run only if --controllers enables them. Run them in a separate process,
with --webhook=false:

  hostreplace           processes HostReplace operations of Machines whose
                        provider is registered (--providers)
  machineconfiguration  creates MachineConfigurationVersions; off by default

Usage:
  webhook [flags]

Flags:
`

// parse reads the command line. It returns pflag.ErrHelp after it printed the
// help.
func parse(args []string, stdout io.Writer) (*options, error) {
	o := &options{}
	flags := o.flags()
	flags.SetOutput(stdout)
	flags.Usage = func() { fmt.Fprint(stdout, usage+flags.FlagUsagesWrapped(100)) }
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return o, o.validate()
}

// flags returns all flags, in the order of the help.
func (o *options) flags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("webhook", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.BoolVar(&o.webhook, "webhook", true, "serve the admission webhook")
	flags.StringVar(&o.enforcement, "enforcement", string(admission.Deny), "what happens to a request that breaks a rule: deny, warn, or warn-except-frozen, which warns but still denies changes to frozen pairs and started operations")
	flags.StringSliceVar(&o.controllers, "controllers", nil, "controllers to run: * enables all that are on by default, foo enables the controller foo, -foo disables it; empty runs none")
	flags.StringVar(&o.certDir, "cert-dir", "/etc/hostformat/tls", "`directory` that contains tls.crt and tls.key")
	flags.StringVar(&o.clientCA, "client-ca", "", "`file` with a CA certificate: clients of the webhook must present a certificate signed by this CA; empty accepts all clients; read once, at startup")
	flags.StringVar(&o.host, "host", "", "`address` on which the webhook is served; empty for all addresses")
	flags.IntVar(&o.port, "port", 9443, "`port` on which the webhook is served")
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "`address` on which /healthz, /readyz and /startz are served, without TLS")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "`address` on which /metrics is served, with TLS; 0 disables it")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` with which controllers connect to the API server; empty uses the in-cluster configuration")
	flags.BoolVar(&o.leaderElect, "leader-elect", false, "elect a leader, so that only one of several processes runs controllers; cannot be combined with the webhook")
	flags.StringVar(&o.leaderElectionNamespace, "leader-election-namespace", "", "`namespace` of the Lease for leader election; empty uses the namespace of the pod")
	flags.IntVar(&o.concurrency, "concurrent-operations", 4, "maximum number of operations that are processed at the same time")
	flags.StringVar(&o.claimNamespace, "claim-namespace", resolve.DefaultClaimNamespace, "`namespace` of the Leases that record which operation may replace which host; must be the same for all processes that replace these hosts")
	flags.DurationVar(&o.callTimeout, "provider-call-timeout", 2*time.Minute, "maximum time for one call to a provider, including the reads right before it")
	flags.IntVar(&o.callsPerProvider, "concurrent-provider-calls", 10, "maximum number of calls to one provider that are outstanding at the same time, and as many more that ask for the progress of a replacement")
	flags.StringSliceVar(&o.providers, "providers", nil, "built-in providers to register: Simulated, which replaces no real host, is for trials and tests")
	flags.StringVar(&o.userDataTemplate, "user-data-template", "", "`file` with the cloud-config that replaced hosts boot with; empty uses the built-in one")
	flags.StringVar(&o.simulated, "simulated-provider", "", "how the provider Simulated misbehaves, which this also registers: a comma-separated list of delay=D, duration=D, fail=N, lose-answer, forget-keys, broken=IMAGE, dir=DIRECTORY")
	flags.DurationVar(&o.shutdownDelay, "shutdown-delay", 10*time.Second, "how long to keep serving the webhook after a termination signal, while not ready, so that clients switch to another replica; in the second half, each response closes its connection")
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
		value   string
		allowed []string
	}{
		"--log-format":  {o.logFormat, []string{"json", "text"}},
		"--log-level":   {o.logLevel, []string{"info", "debug"}},
		"--enforcement": {o.enforcement, admission.Enforcements},
	} {
		if !slices.Contains(choice.allowed, choice.value) {
			return fmt.Errorf("%s must be %s, got %q", name, strings.Join(choice.allowed, " or "), choice.value)
		}
	}
	return o.validateControllers()
}

// config returns the configuration of the server.
func (o *options) config(log logr.Logger) (server.Config, error) {
	config := server.Config{
		Logger:         log,
		HealthAddress:  o.healthAddress,
		MetricsAddress: o.metricsAddress,
		ShutdownDelay:  o.shutdownDelay,
	}
	if o.webhook {
		config.Webhook = &server.Webhook{
			Address:     net.JoinHostPort(o.host, strconv.Itoa(o.port)),
			CertDir:     o.certDir,
			ClientCA:    o.clientCA,
			Enforcement: admission.Enforcement(o.enforcement),
		}
	}
	var err error
	config.Controllers, err = o.controllersConfig()
	return config, err
}
