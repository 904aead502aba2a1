package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/internal/admission"
	"unbounded-cloud.io/hostformat/test/local"
)

const patience, interval = time.Minute, 20 * time.Millisecond

// Limits that tests wait for.
const short, longer = time.Second * slowdown, 4 * time.Second * slowdown

// defaults are the limits that ship.
var defaults = DefaultLimits()

// testServer is a server on ports of its own.
type testServer struct {
	dir                   string
	ca                    *certs.CA
	port, health, metrics int
	log                   local.Log
	stop                  context.CancelFunc
	result                chan error // what Run returned
}

func newTestServer(t *testing.T) *testServer {
	t.Helper()
	ca, err := certs.NewCA()
	require.NoError(t, err)
	return &testServer{dir: t.TempDir(), ca: ca, port: freePort(t), health: freePort(t), metrics: freePort(t), result: make(chan error, 1)}
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := local.FreePort()
	require.NoError(t, err)
	return port
}

func (s *testServer) config() Config {
	return Config{
		Logger:         testLogger(&s.log),
		Webhook:        &Webhook{Address: s.address(s.port), CertDir: s.dir, Enforcement: admission.Deny},
		HealthAddress:  s.address(s.health),
		MetricsAddress: s.address(s.metrics),
	}
}

func testLogger(w io.Writer) logr.Logger { return logr.FromSlogHandler(slog.NewTextHandler(w, nil)) }

// start runs a server that has a certificate, and waits until it is ready.
func start(t *testing.T, change func(*Config)) *testServer {
	t.Helper()
	s := newTestServer(t)
	s.issue(t)
	s.run(t, change)
	s.waitReady(t)
	return s
}

// run runs the server in this process until the test ends.
func (s *testServer) run(t *testing.T, change func(*Config)) {
	t.Helper()
	config := s.config()
	if change != nil {
		change(&config)
	}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() {
		s.result <- Run(ctx, config)
		close(s.result)
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-s.result, s.log.String())
	})
}

func (s *testServer) address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func (s *testServer) issue(t *testing.T) {
	t.Helper()
	require.NoError(t, s.ca.IssueTo(s.dir, time.Hour, "127.0.0.1"))
}

func (s *testServer) get(path string) (int, string) {
	response, err := http.Get("http://" + s.address(s.health) + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

func (s *testServer) waitReady(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		code, body := s.get("/readyz")
		assert.Equal(c, http.StatusOK, code, body)
	}, patience, interval)
}

// trust is the TLS configuration of a client that trusts the server and presents
// certificates.
func (s *testServer) trust(presented ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.ca.PEM)
	return &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", Certificates: presented}
}

// dial opens a TLS connection.
func (s *testServer) dial(port int, change func(*tls.Config)) (*tls.Conn, error) {
	config := s.trust()
	if change != nil {
		change(config)
	}
	return tls.Dial("tcp", s.address(port), config)
}

func (s *testServer) client(presented ...tls.Certificate) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: s.trust(presented...)}}
}

func (s *testServer) post(client *http.Client, path, body string) (int, string, error) {
	response, err := client.Post("https://"+s.address(s.port)+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, string(answer), err
}

func (s *testServer) scrape() (string, error) {
	client := s.client()
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + s.address(s.metrics) + "/metrics")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func machineReview(object string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","kind":{"group":"unbounded-cloud.io","version":"v1alpha3","kind":"Machine"},"object":` + object + `}}`
}

// Ready means that a TLS client gets a response. Liveness does not depend on it.
func TestReadiness(t *testing.T) {
	s := newTestServer(t)
	s.run(t, nil)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		code, body := s.get("/readyz")
		assert.Equal(c, http.StatusServiceUnavailable, code)
		assert.Contains(c, body, "no certificate: open "+s.dir+"/tls.crt: no such file or directory")
	}, patience, interval)
	code, _ := s.get("/healthz")
	require.Equal(t, http.StatusOK, code)
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Contains(c, s.log.String(), "waiting for a certificate") }, patience, interval)

	s.issue(t)
	s.waitReady(t)
	_, answer, err := s.post(s.client(), admission.ValidatePath, machineReview("{}"))
	require.NoError(t, err)
	var review struct{ Response struct{ Allowed bool } }
	require.NoError(t, json.Unmarshal([]byte(answer), &review))
	require.True(t, review.Response.Allowed)
}

func TestMetrics(t *testing.T) {
	s := start(t, nil)
	code, _, err := s.post(s.client(), admission.ValidatePath, machineReview("{}"))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	text, err := s.scrape()
	require.NoError(t, err)
	require.Contains(t, text, `controller_runtime_webhook_requests_total{code="200",webhook="/validate"} `)
	require.Greater(t, metric(text, "hostformat_certificate_expiration_timestamp_seconds"), float64(time.Now().Unix()))
}

// A server without the webhook has no certificate of its own, and serves metrics
// all the same. It never opens the webhook's port.
func TestWithoutWebhook(t *testing.T) {
	s := newTestServer(t)
	s.run(t, func(c *Config) { c.Webhook = nil })
	s.waitReady(t)
	conn, err := s.dial(s.metrics, func(c *tls.Config) { c.InsecureSkipVerify = true })
	require.NoError(t, err)
	require.Equal(t, []string{"hostformat"}, conn.ConnectionState().PeerCertificates[0].DNSNames)
	require.NoError(t, conn.Close())
	_, err = s.dial(s.port, nil)
	require.ErrorContains(t, err, "refused")
}

// When its context is done, the server immediately reports not ready. During the
// delay it keeps serving, and then closes connections. Run returns nil.
func TestShutdown(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) { c.ShutdownDelay = longer })
	client := s.client()
	review := func() (*http.Response, error) {
		return client.Post("https://"+s.address(s.port)+admission.ValidatePath, "application/json", strings.NewReader(machineReview("{}")))
	}
	response, err := review()
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.False(t, response.Close)

	s.stop()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		code, body := s.get("/readyz")
		assert.Equal(c, http.StatusServiceUnavailable, code)
		assert.Contains(c, body, "shutting down")
	}, patience, interval)
	closed := false
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		response, err := review()
		if assert.NoError(c, err, "the server still serves") {
			assert.NoError(c, response.Body.Close())
			closed = response.Close
		}
		assert.True(c, closed, "the response closes the connection")
	}, patience, interval)
	require.NoError(t, <-s.result)
	_, err = s.dial(s.port, nil)
	require.ErrorContains(t, err, "refused")
}

// Run returns an error if an address is in use.
func TestAddressInUse(t *testing.T) {
	for name, set := range map[string]func(c *Config, address string){
		"webhook": func(c *Config, address string) { c.Webhook.Address = address },
		"health":  func(c *Config, address string) { c.HealthAddress = address },
		"metrics": func(c *Config, address string) { c.MetricsAddress = address },
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer listener.Close()
			config := newTestServer(t).config()
			set(&config, listener.Addr().String())
			require.ErrorContains(t, Run(t.Context(), config), "listen tcp "+listener.Addr().String()+": bind: address already in use")
		})
	}
}
