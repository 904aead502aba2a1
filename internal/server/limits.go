package server

import "time"

// Limits bound the resources that all clients together can use. The bytes add up
// to less than the memory limit in manifests/base/deployment.yaml, with room for
// garbage. Limits are not flags, because each depends on another one or on that
// file.
type Limits struct {
	// HeaderTimeout is how long a TLS handshake may take, and a request header.
	// The API server sends both together.
	HeaderTimeout time.Duration
	// RequestTimeout is how long a request may take to arrive. The API server
	// gives up at the same time: see timeoutSeconds in manifests/base/webhook.yaml.
	RequestTimeout time.Duration
	// ResponseTimeout is how long everything after the request header may take:
	// reading the body, waiting, judging, and writing the response.
	ResponseTimeout time.Duration
	// IdleTimeout is how long a connection may stay open between requests. It is
	// longer than the 90 seconds for which an API server keeps a connection, so
	// that the client closes it, and never while it sends a request.
	IdleTimeout time.Duration
	// HeaderBytes is the maximum size of a request header, to which net/http adds
	// up to 8 KiB. The header of an API server has 300 bytes. A parsed header can
	// use twenty times its size.
	HeaderBytes int

	// Connections is the maximum number of connections to the webhook. Each one
	// uses 50 kB, or up to 230 kB with a malicious header, and a buffer of
	// SmallBytes. 500 are more than the requests that two API servers send at the
	// same time by default.
	Connections int
	// OtherConnections is the maximum number of connections to the health port,
	// and to the metrics port.
	OtherConnections int

	// BodyBytes is the maximum size of a review: enough for an object of 3 MiB
	// before and after an update. It is the limit of controller-runtime.
	BodyBytes int
	// SmallBytes is the maximum size of a small review. Large or slow reviews do
	// not delay small ones. Most reviews have 2 to 10 kB.
	SmallBytes int
	// ReceivedBytes is how much memory the bodies of large reviews, and responses
	// that clients have not read yet, may use together: six of the largest.
	ReceivedBytes int64
	// SmallMemory and LargeMemory are how much memory small and large reviews
	// may use while they are judged, as estimated by cost.
	SmallMemory, LargeMemory int64
	// QueueTimeout is how long a review waits for its turn. Then the client gets
	// a 429. The API server waits ten seconds for a response, so it can try again.
	QueueTimeout time.Duration
}

// DefaultLimits returns the limits that fit the memory limit of the container.
func DefaultLimits() Limits {
	return Limits{
		HeaderTimeout:   10 * time.Second,
		RequestTimeout:  10 * time.Second,
		ResponseTimeout: 20 * time.Second,
		IdleTimeout:     2 * time.Minute,
		HeaderBytes:     1 << 10,

		Connections:      500,
		OtherConnections: 25,

		BodyBytes:     7<<20 - 1,
		SmallBytes:    64 << 10,
		ReceivedBytes: 48 << 20,
		SmallMemory:   32 << 20,
		LargeMemory:   96 << 20,
		QueueTimeout:  3 * time.Second,
	}
}
