package server

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
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

// A client that does not speak TLS and HTTP gets an error, or its connection is
// closed. Nothing is left of it.
func TestBadClients(t *testing.T) {
	garbage := make([]byte, 32<<10)
	_, err := rand.Read(garbage)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		text string // sent unchanged
		want string // how the response begins
	}{
		"plain HTTP":       {"POST /validate HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server."},
		"garbage":          {string(garbage), ""},
		"a broken hello":   {"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03" + string(garbage[:300]), ""},
		"an endless hello": {"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + string(garbage[:20<<10]), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, nil)
			p.warm(t)
			for range 300 {
				conn, err := net.Dial("tcp", p.address(p.port))
				require.NoError(t, err)
				_, _ = io.WriteString(conn, test.text) // the server may have closed it
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
				answer, err := io.ReadAll(conn)
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
				require.True(t, strings.HasPrefix(string(answer), test.want), "%q", answer)
				require.NoError(t, conn.Close())
			}
			p.good(t)
			p.settles(t)
		})
	}
}

func TestBadCalls(t *testing.T) {
	p := startProcess(t, nil)
	p.warm(t)
	client := p.client()
	review := machineReview(`{}`)
	for range 50 {
		for _, test := range []struct {
			method, path, contentType, body string
			code                            int
			want                            string
		}{
			{"POST", admission.ValidatePath, "text/plain", review, http.StatusOK, "contentType=text/plain, expected application/json"},
			{"POST", admission.ValidatePath, "application/yaml", review, http.StatusOK, "expected application/json"},
			{"POST", admission.ValidatePath, "", review, http.StatusOK, "expected application/json"},
			{"POST", admission.ValidatePath, "application/json", "a: b", http.StatusBadRequest, "the body must be a JSON object"},
			{"POST", admission.ValidatePath, "application/json", " \n[]", http.StatusBadRequest, "the body must be a JSON object"},
			{"POST", admission.ValidatePath, "application/json", " \n{", http.StatusOK, "unexpected end of JSON input"},
			{"POST", admission.ValidatePath, "application/json", "", http.StatusOK, "request body is empty"},
			{"GET", admission.ValidatePath, "", "", http.StatusOK, "request body is empty"},
			{"POST", "/nowhere", "application/json", review, http.StatusNotFound, "not found"},
		} {
			request, err := http.NewRequestWithContext(t.Context(), test.method, "https://"+p.address(p.port)+test.path, strings.NewReader(test.body))
			require.NoError(t, err)
			request.Header.Set("Content-Type", test.contentType)
			response, err := client.Do(request)
			require.NoError(t, err)
			answer, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, test.code, response.StatusCode, "%v: %s", test, answer)
			require.Contains(t, string(answer), test.want)
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+p.address(p.port)+admission.ValidatePath, strings.NewReader(review))
	require.NoError(t, err)
	request.Header.Set("X-Long", strings.Repeat("x", defaults.HeaderBytes+10<<10))
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, response.StatusCode)
	client.CloseIdleConnections()
	p.good(t)
	p.settles(t)
}

// Clients reset connections at every stage of a request.
func TestResets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test runs it")
	}
	p := startProcess(t, nil)
	p.warm(t)
	for i := range 2000 {
		raw, err := net.Dial("tcp", p.address(p.port))
		require.NoError(t, err)
		require.NoError(t, raw.(*net.TCPConn).SetLinger(0)) // Close sends RST
		switch i % 4 {
		case 1:
			_, _ = raw.Write([]byte{0x16, 0x03, 0x01})
		case 2, 3:
			conn := tls.Client(raw, p.trust())
			text := head(admission.ValidatePath, 1<<20) + "{"
			if i%4 == 3 {
				text = head(admission.ValidatePath, len(machineReview("{}"))) + machineReview("{}")
			}
			_, err = io.WriteString(conn, text)
			require.NoError(t, err)
		}
		require.NoError(t, raw.Close())
	}
	p.good(t)
	p.settles(t)
}

// A client without a certificate of the right CA fails in the handshake.
func TestClientsWithoutCertificate(t *testing.T) {
	clients, err := certs.NewCA()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "client-ca.crt")
	require.NoError(t, os.WriteFile(file, clients.PEM, 0o600))
	p := startProcess(t, func(c *Config) { c.Webhook.ClientCA = file })
	p.clients = clients
	p.warm(t)
	wrong := clientPair(t, p.ca)
	for i := range 200 {
		client := p.client()
		if i%2 == 1 {
			client = p.client(wrong)
		}
		_, _, err := p.post(client, admission.ValidatePath, machineReview("{}"))
		require.Error(t, err)
		client.CloseIdleConnections()
	}
	p.good(t)
	p.settles(t)
}

// The server refuses to renegotiate.
func TestRenegotiation(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("needs openssl on PATH: a Go client cannot renegotiate")
	}
	p := startProcess(t, nil)
	p.warm(t)
	for range 20 {
		command := exec.CommandContext(t.Context(), openssl, "s_client", "-tls1_2", "-connect", p.address(p.port))
		input, err := command.StdinPipe()
		require.NoError(t, err)
		var output local.Log
		command.Stdout, command.Stderr = &output, &output
		require.NoError(t, command.Start())
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Contains(c, output.String(), "Verify return code") }, patience, interval)
		_, err = fmt.Fprintln(input, "R")
		require.NoError(t, err)
		_ = command.Wait() // it fails
		require.Contains(t, output.String(), "alert unexpected message")
	}
	p.good(t)
	p.settles(t)
}
