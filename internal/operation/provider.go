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
// A provider may be called again after a crash, by another process, and for a
// key that it has seen. It keeps what it needs to answer Lookup outside the
// process. Every error is tried again, with backoff, unless it is made with
// Permanent. providertest.Run holds a provider to all this.
type Provider interface {
	// Replace starts to install a host anew and returns an identifier for Poll.
	// It returns as soon as the replacement has been accepted. A second call
	// with the same key must not replace the host again. A call with a lower
	// fence than the host has seen must not replace it either: its error is, or
	// wraps, a *FenceError.
	Replace(ctx context.Context, r Replacement) (operationID string, err error)

	// Lookup tells whether a call with this key was accepted, and as what. It
	// is asked before an attempt is repeated whose answer was lost.
	Lookup(ctx context.Context, key string) (operationID string, found bool, err error)

	// Poll tells how far an accepted replacement has come.
	Poll(ctx context.Context, operationID string) (Progress, error)
}

// Replacement is one host to install anew.
type Replacement struct {
	// Key is the same for every attempt at one target of one operation, and
	// differs from all others. It is not bounded in length or alphabet.
	Key string
	// Machine is the name of the Machine, ProviderID the identifier that its
	// spec gives for the host, which may be empty.
	Machine, ProviderID string
	// Pair is what to install. An empty image keeps the one that the host has.
	// The format is always CloudInit.
	Pair resolve.Pair
	// Fence grows with each operation that claims the host; the lowest is 1. A
	// provider keeps the highest that it has accepted with its record of the
	// host, in the same step in which it acts.
	Fence int64
	// UserData is the cloud-init payload. It is not to be logged.
	UserData []byte
}

// FenceError refuses a replacement whose fence belongs to the past: another
// operation has claimed the host since the call was prepared.
type FenceError struct {
	// Fence is that of the call, Known the highest that the provider has accepted
	// for the host.
	Fence, Known int64
}

func (e *FenceError) Error() string {
	return fmt.Sprintf("the fence %d of the call is not above %d, which this host has seen", e.Fence, e.Known)
}

// State is how far a replacement has come.
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
	// Message says more to people, in one sentence.
	Message string
}

// Permanent marks an error of a provider as one that another attempt cannot
// mend: the target fails.
func Permanent(err error) error { return permanentError{err} }

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func isPermanent(err error) bool {
	_, ok := errors.AsType[permanentError](err)
	return ok
}

// keyFor is the idempotency key of one target. The operation's name would not
// do: an operation that is deleted and created again is another one.
func keyFor(operation types.UID, machine string) string { return string(operation) + "/" + machine }
