package main

import (
	"time"
	"unicode/utf8"
)

// limits bound what the clients of the webhook's port can take together,
// whoever they are. The sum of what is bounded in bytes stays below the memory
// limit of manifests/base/deployment.yaml, with room for the collector of
// garbage. They are no flags: each follows from another one, or from that file.
type limits struct {
	// Header is how long a handshake and the header of a call may take, each.
	// The API server sends both at once.
	Header time.Duration
	// Request is how long a call may take to arrive. A caller that takes
	// longer has given up: timeoutSeconds in manifests/base/webhook.yaml.
	Request time.Duration
	// Answer is how long all that follows a header may take: the body, the
	// turn, the verdict, and a client that reads slowly.
	Answer time.Duration
	// Idle is how long a connection may stay between calls: longer than the 90
	// seconds for which an API server keeps it, so that it is the client that
	// closes it, and never while a call is on its way.
	Idle time.Duration
	// HeaderBytes is the size of a header, to which net/http adds up to 8 KiB.
	// That of an API server has 300 bytes; parsed, a hostile one takes twenty
	// times its size.
	HeaderBytes int

	// Connections is how many there may be; each costs 50 kB, up to 230 kB with
	// a hostile header, and what is small of a review or of an answer. The
	// longest waiting one makes room for a new one. 500 are more than two API
	// servers have writes under way by default.
	Connections int
	// Others is how many there may be to the port of health, and to that of
	// metrics.
	Others int

	// Body is the size of a review: an object of 3 MiB before and after a
	// write, and some more. It is what controller-runtime allows.
	Body int
	// Small is the size of a review that others do not hold up, be they ever
	// so large or slow. Most have 2 to 10 kB.
	Small int
	// Received is what the larger ones, and answers that wait to be read, may
	// take together: six of the largest.
	Received int64
	// SmallWork and LargeWork are what judging may take at once, as estimated
	// by cost, of small and of larger reviews.
	SmallWork, LargeWork int64
	// Turn is how long a review waits for its turn, before it is answered that
	// it is to come again. The caller waits for ten seconds, so that it can.
	Turn time.Duration
}

// production is what is served with.
var production = limits{
	Header:      10 * time.Second,
	Request:     10 * time.Second,
	Answer:      20 * time.Second,
	Idle:        2 * time.Minute,
	HeaderBytes: 1 << 10,

	Connections: 500,
	Others:      25,

	Body:      7<<20 - 1,
	Small:     64 << 10,
	Received:  48 << 20,
	SmallWork: 32 << 20,
	LargeWork: 96 << 20,
	Turn:      3 * time.Second,
}

// What judging takes at most, measured with the most expensive reviews that we
// could think of (TestCostOfReviews): several copies of each byte, longer by far
// where it is one that JSON escapes or no UTF-8; for each value a part of a tree, of
// a map, and an error; and stack for each level of nesting.
const (
	costOfByte   = 8
	costOfEscape = 40
	costOfValue  = 296
	costOfLevel  = 2048
)

// cost estimates how many bytes of memory it takes to judge a review, which may
// be no JSON at all.
func cost(review [][]byte) int64 {
	var size, escapes, values, level, deepest int64
	var quoted, escaped bool
	for _, piece := range review {
		size += int64(len(piece))
		for _, b := range piece {
			switch {
			case b == '<' || b == '>' || b == '&' || b >= utf8.RuneSelf:
				escapes++
			case quoted:
				quoted = escaped || b != '"'
				escaped = !escaped && b == '\\'
				continue
			case b == '"':
				quoted = true
			case b == ',':
				values++
			case b == '{' || b == '[':
				values++
				level++
				deepest = max(deepest, level)
			case b == '}' || b == ']':
				level--
			}
			escaped = false
		}
	}
	return costOfByte*size + costOfEscape*escapes + costOfValue*values + costOfLevel*deepest
}
