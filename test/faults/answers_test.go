package faults

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// verdict is what an answer to a write is worth.
type verdict int

const (
	right   verdict = iota // what the rules say
	closed                 // refused since nobody could judge: nothing was stored
	unclear                // an error that may hide a write that was stored
	wrong                  // anything else
	verdicts
)

// words are how the API server refuses what nobody could judge, before it
// stores anything.
var words = []string{
	"failed calling webhook",                // the webhook did not answer
	"not yet ready to handle request",       // it has just started and knows no webhooks
	"could not find the requested resource", // nor CRDs
	"404 page not found",
}

// refusal judges an error where the rules do not refuse in the words of a rule.
// Only what the API server says before it stores anything counts as closed. An
// error of it that says anything else, or of the connection to it, does not tell
// whether the write was stored.
func refusal(err error) verdict {
	for _, said := range words {
		if strings.Contains(err.Error(), said) {
			return closed
		}
	}
	status, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case !answered && errors.Is(err, syscall.ECONNREFUSED):
		return closed
	case !answered, status.Status().Code >= 500, apierrors.IsTooManyRequests(err), apierrors.IsAlreadyExists(err):
		return unclear
	}
	return wrong
}

// kind is what a writer writes.
type kind string

const (
	trims   kind = "trim"   // an image with whitespace is stored trimmed
	refuses kind = "refuse" // a bad image or format is refused
	keeps   kind = "keep"   // a frozen pair stays
	freezes kind = "freeze" // a pair is stored, trimmed
)

var kinds = []kind{trims, refuses, keeps, freezes}

// count is how many answers there were of each verdict.
type count [verdicts]int

func (c count) String() string {
	return fmt.Sprintf("right=%d closed=%d unclear=%d wrong=%d", c[right], c[closed], c[unclear], c[wrong])
}
