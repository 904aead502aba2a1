package server

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/internal/admission"
)

func TestCertificateIsReadAgain(t *testing.T) {
	s := start(t, nil)
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
	s := start(t, nil)
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
	s := start(t, nil)
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

// With a client CA, the server answers only clients that present a certificate
// signed by it. Readiness needs no certificate, and the check does not log an
// error each time.
func TestClientCA(t *testing.T) {
	clients, err := certs.NewCA()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "client-ca.crt")
	require.NoError(t, os.WriteFile(file, clients.PEM, 0o600))
	s := start(t, func(c *Config) { c.Webhook.ClientCA = file })
	for range 3 {
		s.waitReady(t)
	}
	review := func(presented ...tls.Certificate) (int, error) {
		code, _, err := s.post(s.client(presented...), admission.ValidatePath, machineReview("{}"))
		return code, err
	}
	code, err := review(clientPair(t, clients))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	_, err = review()
	require.ErrorContains(t, err, "certificate required")
	_, err = review(clientPair(t, s.ca)) // signs serving certificates only
	require.ErrorContains(t, err, "unknown certificate authority")
}

func TestClientCAIsMissing(t *testing.T) {
	config := newTestServer(t).config()
	config.Webhook.ClientCA = "/no/such/file"
	require.EqualError(t, Run(t.Context(), config), "failed to read the client CA: open /no/such/file: no such file or directory")

	config.Webhook.ClientCA = filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(config.Webhook.ClientCA, nil, 0o600))
	require.EqualError(t, Run(t.Context(), config), "failed to read the client CA: "+config.Webhook.ClientCA+" contains no certificate")
}

func clientPair(t *testing.T, ca *certs.CA) tls.Certificate {
	t.Helper()
	certPEM, keyPEM, err := ca.IssueClient(time.Hour, "kube-apiserver")
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	return pair
}
