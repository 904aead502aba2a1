package begin

import (
	"fmt"
	"strconv"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// The reasons that have to do with spec.parameters.
const (
	InvalidParameters resolve.Reason = "InvalidParameters"
	Halted            resolve.Reason = "Halted"
)

// The keys of spec.parameters that a HostReplace reads. Others are ignored.
const (
	MaxInFlightParameter = "maxInFlight"
	MaxFailuresParameter = "maxFailures"
	PauseParameter       = "pause"
)

// Parameters bound how much one operation destroys at a time.
type Parameters struct {
	// MaxInFlight is how many targets may be under way at once, until they are
	// Complete.
	MaxInFlight int
	// MaxFailures is how many targets may fail before no further one begins.
	MaxFailures int
	// Pause keeps further targets from beginning until it is false again.
	Pause bool
}

// ReadParameters reads spec.parameters. The fault says which value cannot be
// read and what is allowed; it is empty where all can.
func ReadParameters(raw map[string]string) (p Parameters, fault string) {
	p = Parameters{MaxInFlight: 1, MaxFailures: 1}
	for key, into := range map[string]*int{MaxInFlightParameter: &p.MaxInFlight, MaxFailuresParameter: &p.MaxFailures} {
		text, set := raw[key]
		if !set {
			continue
		}
		number, err := strconv.Atoi(text)
		if err != nil || number < 1 || number > v1alpha3.MaxTargets {
			return p, fmt.Sprintf("spec.parameters.%s: %q must be a whole number from 1 to %d", key, resolve.Excerpt(text), v1alpha3.MaxTargets)
		}
		*into = number
	}
	if text, set := raw[PauseParameter]; set {
		if text != "true" && text != "false" {
			return p, fmt.Sprintf(`spec.parameters.%s: %q must be "true" or "false"`, PauseParameter, resolve.Excerpt(text))
		}
		p.Pause = text == "true"
	}
	return p, ""
}

// InFlight returns how many targets are under way: begun, and not finished.
func InFlight(targets []v1alpha3.OperationTarget) int {
	n := 0
	for i := range targets {
		if targets[i].Begun() && !targets[i].Phase.Finished() {
			n++
		}
	}
	return n
}

// HaltFault reports why no further target may begin: as many have failed as
// spec.parameters.maxFailures allows. It names the first. Both results are empty
// where another target may begin.
func HaltFault(targets []v1alpha3.OperationTarget, p Parameters) (resolve.Reason, string) {
	failed, first := 0, -1
	for i := range targets {
		if targets[i].Phase == v1alpha3.OperationFailed {
			if failed++; failed == 1 {
				first = i
			}
		}
	}
	if failed < p.MaxFailures {
		return "", ""
	}
	return Halted, fmt.Sprintf("not replaced: Machine %q failed (%s), and no further host is begun once %d failed (spec.parameters.%s)",
		targets[first].MachineRef, resolve.Cut(targets[first].Message, 200), p.MaxFailures, MaxFailuresParameter)
}
