package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

type hooks map[string]http.Handler

func (h hooks) Register(path string, hook http.Handler) { h[path] = hook }

// A large review that does not get its turn is answered with 429. Meanwhile, a
// small review gets its own turn.
func TestTurns(t *testing.T) {
	t.Parallel()
	limits := defaults
	limits.QueueTimeout = short
	begun, end := make(chan struct{}, 8), make(chan struct{})
	gated := newGate(limits).wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-end
	}))
	call := func(size int) *httptest.ResponseRecorder {
		recorder := httptest.NewRecorder()
		gated.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("{"+strings.Repeat(",", size-2)+"}")))
		return recorder
	}
	most := int(limits.LargeMemory-costOfLevel) / (costOfByte + costOfValue)
	codes := make(chan int, 2)
	go func() { codes <- call(most).Code }()
	<-begun
	counted := testutil.ToFloat64(throttled)
	busy := call(defaults.SmallBytes + 1)
	require.Equal(t, http.StatusTooManyRequests, busy.Code)
	require.Equal(t, "1", busy.Header().Get("Retry-After"))
	require.Equal(t, "too many reviews at the same time; try again in a second\n", busy.Body.String())
	require.InDelta(t, counted+1, testutil.ToFloat64(throttled), 0)
	go func() { codes <- call(defaults.SmallBytes).Code }()
	<-begun
	close(end)
	require.Equal(t, http.StatusOK, <-codes)
	require.Equal(t, http.StatusOK, <-codes)
	require.Equal(t, http.StatusOK, call(most).Code, "a finished review makes room")
	require.Equal(t, http.StatusRequestEntityTooLarge, call(most+2).Code)
}
