package server

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"unbounded-cloud.io/hostformat/internal/admission"
)

// Config configures Run.
type Config struct {
	Logger logr.Logger

	// Webhook configures the admission webhook. If nil, it is not served.
	Webhook *Webhook
	// Controllers configures the controllers. If nil, none run.
	Controllers *Controllers

	// HealthAddress is where /healthz, /readyz and /startz are served, without
	// TLS.
	HealthAddress string
	// MetricsAddress is where /metrics is served, over TLS. "0" disables it.
	MetricsAddress string
	// ShutdownDelay is how long Run keeps serving the webhook, while it reports not
	// ready, after its context is done.
	ShutdownDelay time.Duration

	// Limits bound the resources that clients can use. DefaultLimits apply if
	// it is the zero value.
	Limits Limits
}

// Webhook configures the admission webhook.
type Webhook struct {
	// Address is where the webhook is served.
	Address string
	// CertDir is the directory that contains tls.crt and tls.key. The server
	// waits for these files, and reloads them when they change.
	CertDir string
	// ClientCA is a file with a CA certificate. Clients must present a
	// certificate signed by this CA. If empty, all clients are accepted.
	ClientCA string
	// Enforcement is what happens to a request that breaks a rule.
	Enforcement admission.Enforcement
}

// Controllers configures the controllers that run beside the webhook, or without
// it.
type Controllers struct {
	// API is how the controllers reach the API server.
	API *rest.Config
	// Options are those of the manager: the scheme, the cache and leader
	// election. The server sets the logger, and serves health and metrics itself.
	Options ctrl.Options
	// Add adds the controllers to the manager.
	Add func(ctrl.Manager) error
	// Ready reports why the controllers cannot work. Beside the webhook, it does not
	// count: the webhook serves all the same.
	Ready healthz.Checker
}
