package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var throttled = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "hostformat_admission_throttled_calls_total",
	Help: "Calls that were answered 429, since too much was being received or judged at the time.",
})

func init() { metrics.Registry.MustRegister(throttled) }

// gate takes in reviews and has so many judged at once that memory suffices. A
// review takes its turn once it is here whole, and its answer is sent once that
// is over, so that no client holds up another one by being slow: while a review
// comes and while its answer goes, its connection may have to make room.
type gate struct {
	limits                         limits
	received, smallWork, largeWork *semaphore.Weighted
}

func newGate(l limits) *gate {
	return &gate{l, semaphore.NewWeighted(l.Received), semaphore.NewWeighted(l.SmallWork), semaphore.NewWeighted(l.LargeWork)}
}

func (g *gate) wrap(hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &answer{header: http.Header{}, code: http.StatusOK}
		err := g.judge(answer, r, hook)
		if size := int64(answer.body.Len()); err == nil && size > int64(g.limits.Small) {
			switch {
			case size > g.limits.Received:
				err = refusal{http.StatusRequestEntityTooLarge, "the answer to the review would be too large"}
			case g.received.TryAcquire(size):
				defer g.received.Release(size)
			default:
				err = errBusy
			}
		}
		if c := connectionOf(r); c != nil {
			c.waits(true) // until the answer is read
		}
		if err != nil {
			refuse(w, err)
			return
		}
		maps.Copy(w.Header(), answer.header)
		w.WriteHeader(answer.code)
		_, _ = w.Write(answer.body.Bytes()) // or else the client is gone
	})
}

// answer is kept until the turn of its review is over.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

// A refusal says why a call is not judged. The API server asks again by itself
// after a 429.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

var (
	errBusy  = refusal{http.StatusTooManyRequests, "too many reviews at once; try again in a second"}
	errSlow  = refusal{http.StatusRequestTimeout, "the review did not arrive in time"}
	errShape = refusal{http.StatusBadRequest, "the body must be a JSON object"}
)

func refuse(w http.ResponseWriter, err error) {
	because, ours := errors.AsType[refusal](err)
	if !ours {
		because = refusal{http.StatusBadRequest, "the review cannot be read: " + err.Error()}
	}
	if because.code == http.StatusTooManyRequests {
		throttled.Inc()
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, because.text, because.code)
}

// judge receives a review and has it judged when it is its turn.
func (g *gate) judge(w http.ResponseWriter, r *http.Request, hook http.Handler) error {
	review, held, err := g.receive(r)
	defer func() { g.received.Release(held) }()
	if err != nil {
		return err
	}
	work, room := g.largeWork, g.limits.LargeWork
	if size(review) <= g.limits.Small {
		work, room = g.smallWork, g.limits.SmallWork
	}
	takes := cost(review)
	if takes > room {
		return refusal{http.StatusRequestEntityTooLarge, "the review has too many values"}
	}
	turn, cancel := context.WithTimeout(r.Context(), g.limits.Turn)
	defer cancel()
	if work.Acquire(turn, takes) != nil {
		return cmp.Or[error](r.Context().Err(), errBusy) // whose client is gone gets no answer
	}
	defer work.Release(takes)
	r = r.WithContext(r.Context())
	r.Body = body(review)
	hook.ServeHTTP(w, r)
	return nil
}

// receive reads a review, during which its connection may have to make room
// for another one. What is refused is read to its end, too, unless that is far
// away: else the client might find its connection reset and never see why.
func (g *gate) receive(r *http.Request) (review [][]byte, held int64, err error) {
	if c := connectionOf(r); c != nil {
		c.waits(true)
		defer c.waits(false)
	}
	review, held, err = g.read(r)
	if because, ours := errors.AsType[refusal](err); ours && because != errSlow {
		g.received.Release(held)
		_, _ = io.CopyN(io.Discard, r.Body, int64(g.limits.Body))
		return nil, 0, err
	}
	return review, held, err
}

func (g *gate) tooLarge() error {
	return refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the review is larger than %d bytes", g.limits.Body)}
}

// read reads a review in pieces, and says how much of it is held.
func (g *gate) read(r *http.Request) (review [][]byte, held int64, err error) {
	limit := g.limits.Body
	if r.ContentLength > int64(limit) {
		return nil, 0, g.tooLarge()
	}
	left := limit + 1
	if r.ContentLength >= 0 {
		left = int(r.ContentLength)
	}
	for left > 0 {
		// The first piece of a connection is bounded by how many there are. Room for
		// another one is taken when the one before has come, so that who declares
		// much and sends little holds little.
		piece := make([]byte, min(g.limits.Small, left))
		if len(review) > 0 {
			if !g.received.TryAcquire(int64(len(piece))) {
				return nil, held, errBusy
			}
			held += int64(len(piece))
		}
		n, err := io.ReadFull(r.Body, piece)
		review, left = append(review, piece[:n]), left-n
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && r.ContentLength < 0:
			left = 0
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, held, errSlow
		case err != nil:
			return nil, held, err
		}
	}
	if size(review) > limit {
		return nil, held, g.tooLarge()
	}
	// What does not begin as an object is taken for YAML, which costs eighty
	// times its size to read.
	if !beginsAsObject(review) && size(review) > 0 {
		return nil, held, errShape
	}
	return review, held, nil
}

func beginsAsObject(review [][]byte) bool {
	for _, piece := range review {
		if text := bytes.TrimLeftFunc(piece, unicode.IsSpace); len(text) > 0 {
			return text[0] == '{'
		}
	}
	return false
}

func size(review [][]byte) (n int) {
	for _, piece := range review {
		n += len(piece)
	}
	return n
}

// body is a review as controller-runtime reads it.
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
