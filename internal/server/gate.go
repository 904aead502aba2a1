package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var throttled = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "hostformat_admission_throttled_calls_total",
	Help: "Number of calls that were answered with 429, because too many reviews were being received or judged.",
})

func init() { metrics.Registry.MustRegister(throttled) }

// gate admits only as many reviews as fit in memory. It reads a review completely
// before the review takes its turn, and sends the response after that turn, so a
// slow client never delays another one. While it reads a review or sends a
// response, the connection may be closed to make room for another one.
type gate struct {
	limits   Limits
	received *semaphore.Weighted // bytes of bodies and responses
	small    *semaphore.Weighted // memory for judging small reviews
	large    *semaphore.Weighted // memory for judging large reviews
}

func newGate(l Limits) *gate {
	return &gate{l, semaphore.NewWeighted(l.ReceivedBytes), semaphore.NewWeighted(l.SmallMemory), semaphore.NewWeighted(l.LargeMemory)}
}

func (g *gate) wrap(hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response := &response{header: http.Header{}, code: http.StatusOK}
		err := g.judge(response, r, hook)
		if size := int64(response.body.Len()); err == nil && size > int64(g.limits.SmallBytes) {
			switch {
			case size > g.limits.ReceivedBytes:
				err = rejection{http.StatusRequestEntityTooLarge, "the response to the review would be too large"}
			case g.received.TryAcquire(size):
				defer g.received.Release(size)
			default:
				err = errBusy
			}
		}
		setWaiting(r, true) // until the client has read the response
		if err != nil {
			reject(w, err)
			return
		}
		maps.Copy(w.Header(), response.header)
		w.WriteHeader(response.code)
		_, _ = w.Write(response.body.Bytes()) // fails only if the client closed the connection
	})
}

// judge receives a review and calls the hook when it is the review's turn.
func (g *gate) judge(w http.ResponseWriter, r *http.Request, hook http.Handler) error {
	review, held, err := g.receive(r)
	defer func() { g.received.Release(held) }()
	if err != nil {
		return err
	}
	memory, limit := g.large, g.limits.LargeMemory
	if size(review) <= g.limits.SmallBytes {
		memory, limit = g.small, g.limits.SmallMemory
	}
	estimate := cost(review)
	if estimate > limit {
		return rejection{http.StatusRequestEntityTooLarge, "the review has too many values"}
	}
	turn, cancel := context.WithTimeout(r.Context(), g.limits.QueueTimeout)
	defer cancel()
	if memory.Acquire(turn, estimate) != nil {
		return cmp.Or[error](r.Context().Err(), errBusy) // nobody reads the response if the client closed the connection
	}
	defer memory.Release(estimate)
	r = r.WithContext(r.Context())
	r.Body = body(review)
	hook.ServeHTTP(w, r)
	return nil
}

// response holds the response to a review until the review's turn is over.
type response struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *response) Header() http.Header         { return r.header }
func (r *response) WriteHeader(code int)        { r.code = code }
func (r *response) Write(p []byte) (int, error) { return r.body.Write(p) }

// rejection is why a review is not judged.
type rejection struct {
	code    int
	message string
}

func (r rejection) Error() string { return r.message }

var (
	errBusy  = rejection{http.StatusTooManyRequests, "too many reviews at the same time; try again in a second"}
	errSlow  = rejection{http.StatusRequestTimeout, "the review did not arrive in time"}
	errShape = rejection{http.StatusBadRequest, "the body must be a JSON object"}
)

// reject answers a review that is not judged. The API server tries again after a
// 429.
func reject(w http.ResponseWriter, err error) {
	reason, ok := errors.AsType[rejection](err)
	if !ok {
		reason = rejection{http.StatusBadRequest, "the review cannot be read: " + err.Error()}
	}
	if reason.code == http.StatusTooManyRequests {
		throttled.Inc()
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, reason.message, reason.code)
}

// body returns a review as controller-runtime reads it.
func body(review [][]byte) io.ReadCloser {
	if size(review) == 0 {
		return http.NoBody
	}
	readers := make([]io.Reader, len(review))
	for i, piece := range review {
		readers[i] = bytes.NewReader(piece)
	}
	return io.NopCloser(io.MultiReader(readers...))
}
