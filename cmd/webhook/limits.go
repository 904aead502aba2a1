package main

import "time"

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
	// Idle is how long a connection may stay between calls: what the client
	// of an API server keeps it for.
	Idle time.Duration
	// HeaderBytes is the size of a header. That of an API server has 300 bytes;
	// parsed, a hostile one takes twenty times its size.
	HeaderBytes int

	// Connections is how many there may be; each costs 50 kB, and up to 200 kB
	// with a hostile header. The longest waiting one makes room for a new one.
	// 500 are more than two API servers have writes under way by default.
	Connections int
	// Streams is how many calls an HTTP/2 connection may have at once.
	Streams int
	// StreamBytes is what an HTTP/2 connection may send ahead: the least that
	// there is.
	StreamBytes int

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
	Idle:        90 * time.Second,
	HeaderBytes: 4 << 10, // net/http adds as much

	Connections: 500,
	Streams:     8,
	StreamBytes: 64 << 10,

	Body:      7<<20 - 1,
	Small:     64 << 10,
	Received:  48 << 20,
	SmallWork: 32 << 20,
	LargeWork: 160 << 20,
	Turn:      3 * time.Second,
}

// What judging takes at most, measured with the most expensive reviews that we
// could think of: several copies of each byte, and for each value a part of a
// tree, of a map, and an error (TestCostOfReviews).
const (
	costOfByte  = 8
	costOfValue = 296
)

// cost estimates how many bytes of memory it takes to judge a review. A comma
// or bracket within a string counts as a value, too, which errs on the safe
// side.
func cost(review [][]byte) int64 {
	var size, values int64
	for _, piece := range review {
		size += int64(len(piece))
		for _, b := range piece {
			if b == ',' || b == '{' || b == '[' {
				values++
			}
		}
	}
	return costOfByte*size + costOfValue*values
}
