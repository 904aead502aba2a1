package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"unicode"
)

// receive reads a review. Meanwhile its connection may be closed to make room for
// another one. The body of a rejected review is read as well, unless it is far too
// large: otherwise the connection could be reset before the client reads why.
func (g *gate) receive(r *http.Request) (review [][]byte, held int64, err error) {
	setWaiting(r, true)
	defer setWaiting(r, false)
	review, held, err = g.read(r)
	if reason, ok := errors.AsType[rejection](err); ok && reason != errSlow {
		g.received.Release(held)
		_, _ = io.CopyN(io.Discard, r.Body, int64(g.limits.BodyBytes))
		return nil, 0, err
	}
	return review, held, err
}

// read reads a review in pieces, and returns how many bytes of g.received it
// holds.
func (g *gate) read(r *http.Request) (review [][]byte, held int64, err error) {
	limit := g.limits.BodyBytes
	if r.ContentLength > int64(limit) {
		return nil, 0, g.tooLarge()
	}
	left := limit + 1
	if r.ContentLength >= 0 {
		left = int(r.ContentLength)
	}
	for left > 0 {
		// The limit on connections covers the first piece of each. Memory for
		// another piece is acquired when the previous one is complete, so declaring
		// a large body reserves no memory.
		piece := make([]byte, min(g.limits.SmallBytes, left))
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
	// Anything else is parsed as YAML, which uses eighty times its size.
	if !beginsAsObject(review) && size(review) > 0 {
		return nil, held, errShape
	}
	return review, held, nil
}

func (g *gate) tooLarge() error {
	return rejection{http.StatusRequestEntityTooLarge, fmt.Sprintf("the review is larger than %d bytes", g.limits.BodyBytes)}
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
