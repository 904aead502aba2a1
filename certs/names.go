package certs

// The names under which the webhook is installed.
const (
	Namespace   = "hostformat-system"
	Service     = "hostformat-webhook"
	Secret      = "hostformat-webhook-tls" // holds the serving certificate and its key
	Certificate = "hostformat-webhook"     // CA injection refers to it
)

// DNSNames returns the names at which the API server reaches the webhook.
func DNSNames() []string {
	return []string{Service + "." + Namespace + ".svc", Service + "." + Namespace + ".svc.cluster.local"}
}
