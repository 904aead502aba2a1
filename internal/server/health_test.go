package server

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The startup probe of a process without a certificate succeeds after a while. The
// process is not ready even then, and is alive all the time.
func TestStartupEnds(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(healthHandler(2*time.Second, func(*http.Request) error { return errors.New("no certificate") }))
	defer server.Close()
	get := func(path string) (int, string) {
		response, err := http.Get(server.URL + path)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	for _, path := range []string{"/startz", "/readyz"} { // /startz first: it succeeds later
		code, body := get(path)
		require.Equal(t, http.StatusServiceUnavailable, code, path)
		require.Equal(t, "no certificate\n", body)
	}
	code, _ := get("/healthz")
	require.Equal(t, http.StatusOK, code)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		code, _ := get("/startz")
		assert.Equal(c, http.StatusOK, code)
	}, patience, interval)
	code, _ = get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
}
