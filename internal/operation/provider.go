package operation

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// Provider replaces hosts. A Machine chooses its provider by name, in
// spec.host.external.provider.
//
// A provider may be called again after a crash, by another process, and with a key
// that it has seen. It keeps the state that Lookup needs outside the process. A call
// that returns an error is tried again with backoff, unless the error is made with
// Permanent. providertest.Run tests that a provider keeps this contract.
type Provider interface {
	// Replace starts the installation of a host and returns an identifier for Poll.
	// It returns as soon as the replacement has been accepted. A second call
	// with the same key must not replace the host again. A call with a lower
	// fence than the host has seen must not replace it either: its error is, or
	// wraps, a *FenceError.
	Replace(ctx context.Context, r Replacement) (operationID string, err error)

	// Lookup reports whether a call with this key was accepted, and returns the
	// identifier for Poll. It is called before an attempt without an answer is
	// repeated.
	Lookup(ctx context.Context, key string) (operationID string, found bool, err error)

	// Poll returns the progress of an accepted replacement.
	Poll(ctx context.Context, operationID string) (Progress, error)
}

// Replacement describes the installation of one host.
type Replacement struct {
	// Key identifies one target of one operation. It is the same for every attempt,
	// and neither its length nor its characters are bounded.
	Key string
	// Machine is the name of the Machine, ProviderID the identifier that its
	// spec gives for the host, which may be empty.
	Machine, ProviderID string
	// Pair is the image to install and its format. An empty image keeps the one
	// that the host has. The format is always CloudInit.
	Pair resolve.Pair
	// Fence grows with each operation that claims the host; the lowest is 1. A
	// provider keeps the highest that it has accepted with its record of the
	// host, in the same step in which it acts.
	Fence int64
	// UserData is the cloud-init payload. Never log it.
	UserData []byte
}

// FenceError refuses a replacement with an outdated fence: another operation has
// claimed the host since the call was prepared.
type FenceError struct {
	// Fence is that of the call, Known the highest that the provider has accepted
	// for the host.
	Fence, Known int64
}

func (e *FenceError) Error() string {
	return fmt.Sprintf("the fence %d of the call is not above %d, which the provider knows for this host", e.Fence, e.Known)
}

// State is the progress of a replacement.
type State string

// The states. Succeeded and Failed are final.
const (
	Running   State = "Running"
	Succeeded State = "Succeeded"
	Failed    State = "Failed"
)

// Progress is the answer of Poll.
type Progress struct {
	State State
	// Message adds one sentence for people.
	Message string
}

// Permanent marks an error of a provider as permanent: another attempt cannot
// succeed, and the target fails.
func Permanent(err error) error { return permanentError{err} }

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func isPermanent(err error) bool {
	_, ok := errors.AsType[permanentError](err)
	return ok
}

// keyFor returns the idempotency key of one target. It has the UID of the operation
// and not its name: an operation that is deleted and created again is another one.
func keyFor(operation types.UID, machine string) string { return string(operation) + "/" + machine }
