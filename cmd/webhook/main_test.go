package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/internal/admission"
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
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.code, run(t.Context(), test.args, &stdout, &stderr))
			require.Contains(t, stdout.String(), test.stdout)
			require.Contains(t, stderr.String(), test.stderr)
			if test.code != 0 {
				require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one clear line")
			}
		})
	}
}

func TestAddressInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	var stderr local.Log
	require.Equal(t, 1, run(t.Context(), []string{"--cert-dir", t.TempDir(), "--metrics-bind-address=0",
		"--port", fmt.Sprint(freePort(t)), "--health-probe-bind-address", listener.Addr().String()}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "webhook: listen tcp "+listener.Addr().String()+": bind: address already in use")
}

// server is a running webhook.
type server struct {
	dir                   string
	ca                    *certs.CA
	port, health, metrics int
	stop                  context.CancelFunc
	exit                  chan int
	stderr                local.Log
}

func newServer(t *testing.T) *server {
	t.Helper()
	ca, err := certs.NewCA()
	require.NoError(t, err)
	return &server{dir: t.TempDir(), ca: ca, port: freePort(t), health: freePort(t), metrics: freePort(t), exit: make(chan int, 1)}
}

// args is a command line, with more words at its end.
func (s *server) args(more ...string) []string {
	return append([]string{"--cert-dir", s.dir, "--host=127.0.0.1", "--shutdown-delay=0s", "--log-format=text",
		"--port", fmt.Sprint(s.port), "--health-probe-bind-address", s.address(s.health), "--metrics-bind-address", s.address(s.metrics)}, more...)
}

func start(t *testing.T, args ...string) *server {
	t.Helper()
	s := newServer(t)
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() { s.exit <- run(ctx, s.args(args...), io.Discard, &s.stderr) }()
	t.Cleanup(func() {
		stop()
		if code, open := <-s.exit; open {
			require.Zero(t, code, s.stderr.String())
		}
	})
	return s
}

func (s *server) address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func (s *server) issue(t *testing.T) {
	t.Helper()
	require.NoError(t, s.ca.IssueTo(s.dir, time.Hour, "127.0.0.1"))
}

func (s *server) get(path string) (int, string) {
	response, err := http.Get("http://" + s.address(s.health) + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

func (s *server) waitReady(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		code, body := s.get("/readyz")
		assert.Equal(c, http.StatusOK, code, body)
	}, patience, interval)
}

// trust is how a client trusts the server, and what certificates it shows.
func (s *server) trust(shown ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.ca.PEM)
	return &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", Certificates: shown}
}

// dial opens a TLS connection.
func (s *server) dial(port int, change func(*tls.Config)) (*tls.Conn, error) {
	config := s.trust()
	if change != nil {
		change(config)
	}
	return tls.Dial("tcp", s.address(port), config)
}

func (s *server) client(shown ...tls.Certificate) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: s.trust(shown...)}}
}

func (s *server) review(client *http.Client) (*http.Response, error) {
	return client.Post("https://"+s.address(s.port)+admission.ValidatePath, "application/json", strings.NewReader(machineReview("{}")))
}

// Ready means that a TLS client gets an answer; alive does not depend on it.
func TestReadiness(t *testing.T) {
	s := start(t)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		code, body := s.get("/readyz")
		assert.Equal(c, http.StatusServiceUnavailable, code)
		assert.Contains(c, body, "no certificate: open "+s.dir+"/tls.crt: no such file or directory")
	}, patience, interval)
	code, _ := s.get("/healthz")
	require.Equal(t, http.StatusOK, code)
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Contains(c, s.stderr.String(), "waiting for a certificate") }, patience, interval)

	s.issue(t)
	s.waitReady(t)
	response, err := s.review(s.client())
	require.NoError(t, err)
	defer response.Body.Close()
	var review struct{ Response struct{ Allowed bool } }
	require.NoError(t, json.NewDecoder(response.Body).Decode(&review))
	require.True(t, review.Response.Allowed)
}

func TestCertificateIsReadAgain(t *testing.T) {
	s := start(t)
	s.issue(t)
	s.waitReady(t)
	serial := func() string {
		conn, err := s.dial(s.port, nil)
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	for range 3 {
		s.issue(t)
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NotEqual(c, before, serial()) }, patience, interval)
		before = serial()
	}
}

func TestTLS(t *testing.T) {
	s := start(t)
	s.issue(t)
	s.waitReady(t)
	for name, port := range map[string]int{"webhook": s.port, "metrics": s.metrics} {
		t.Run(name, func(t *testing.T) {
			_, err := s.dial(port, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS11, tls.VersionTLS11 })
			require.ErrorContains(t, err, "protocol version")
			_, err = s.dial(port, func(c *tls.Config) {
				c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}
			})
			require.ErrorContains(t, err, "handshake failure", "no cipher without authenticated encryption")
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				conn, err := s.dial(port, func(c *tls.Config) { c.MaxVersion, c.NextProtos = version, []string{"h2", "http/1.1"} })
				require.NoError(t, err)
				require.Equal(t, version, conn.ConnectionState().Version)
				require.Equal(t, "http/1.1", conn.ConnectionState().NegotiatedProtocol)
				require.NoError(t, conn.Close())
			}
		})
	}
}

// HTTP/2 is not served: not when a client offers it, not when a client offers
// nothing else, and not when a client speaks it without negotiation. The limits
// count connections, so each connection may carry only one call at a time.
func TestHTTP2IsNotServed(t *testing.T) {
	s := start(t)
	s.issue(t)
	s.waitReady(t)
	for name, port := range map[string]int{"webhook": s.port, "metrics": s.metrics} {
		t.Run(name, func(t *testing.T) {
			conn, err := s.dial(port, func(c *tls.Config) { c.NextProtos = []string{"h2", "http/1.1"} })
			require.NoError(t, err)
			require.Equal(t, "http/1.1", conn.ConnectionState().NegotiatedProtocol)
			require.NoError(t, conn.Close())

			_, err = s.dial(port, func(c *tls.Config) { c.NextProtos = []string{"h2"} })
			require.ErrorContains(t, err, "no application protocol")

			conn, err = s.dial(port, nil)
			require.NoError(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
			require.NoError(t, err)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
			answer, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Contains(t, string(answer), "400 Bad Request")
		})
	}
}

func TestMetrics(t *testing.T) {
	s := start(t)
	s.issue(t)
	s.waitReady(t)
	response, err := s.review(s.client())
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	response, err = s.client().Get("https://" + s.address(s.metrics) + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), `controller_runtime_webhook_requests_total{code="200",webhook="/validate"} `)
}

// A signal turns the server unready at once; it goes on answering during the
// delay, tells clients to go elsewhere, and ends with 0.
func TestShutdown(t *testing.T) {
	s := start(t, "--shutdown-delay=8s")
	s.issue(t)
	s.waitReady(t)
	client := s.client()
	response, err := s.review(client)
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
		response, err := s.review(client)
		if assert.NoError(c, err, "still answered") {
			assert.NoError(c, response.Body.Close())
			closed = response.Close
		}
		assert.True(c, closed, "and asked to connect anew")
	}, patience, interval)
	code := <-s.exit
	close(s.exit)
	require.Zero(t, code)
	_, err = s.dial(s.port, nil)
	require.ErrorContains(t, err, "refused")
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := local.FreePort()
	require.NoError(t, err)
	return port
}

// With --client-ca only who shows a certificate of that CA is answered; being
// ready does not depend on one, and is checked without a line in the log each
// time.
func TestClientCA(t *testing.T) {
	clients, err := certs.NewCA()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "client-ca.crt")
	require.NoError(t, os.WriteFile(file, clients.PEM, 0o600))
	s := start(t, "--client-ca", file)
	s.issue(t)
	for range 3 {
		s.waitReady(t)
	}
	response, err := s.review(s.client(clientPair(t, clients)))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	_, err = s.review(s.client())
	require.ErrorContains(t, err, "certificate required")
	_, err = s.review(s.client(clientPair(t, s.ca))) // which signs serving certificates
	require.ErrorContains(t, err, "unknown certificate authority")
}

func TestClientCAIsMissing(t *testing.T) {
	var stderr local.Log
	require.Equal(t, 1, run(t.Context(), []string{"--cert-dir", t.TempDir(), "--client-ca=/no/such/file", "--metrics-bind-address=0", "--shutdown-delay=0s",
		"--port", fmt.Sprint(freePort(t)), "--health-probe-bind-address=127.0.0.1:0"}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "webhook: failed to read client CA cert: open /no/such/file: no such file or directory\n")
}
