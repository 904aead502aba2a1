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

// ParameterFault is a value of spec.parameters that cannot be read.
type ParameterFault struct{ Key, Message string }

// Error names the field and says what is allowed.
func (f ParameterFault) Error() string { return "spec.parameters." + f.Key + ": " + f.Message }

// ReadParameters reads spec.parameters. The fault says which value cannot be
// read and what is allowed; it is empty where all can.
func ReadParameters(raw map[string]string) (p Parameters, fault string) {
	p, faults := parseParameters(raw)
	if len(faults) > 0 {
		return p, faults[0].Error()
	}
	return p, ""
}

// ParameterFaults returns all values of spec.parameters that cannot be read, in a
// fixed order.
func ParameterFaults(raw map[string]string) []ParameterFault {
	_, faults := parseParameters(raw)
	return faults
}

func parseParameters(raw map[string]string) (p Parameters, faults []ParameterFault) {
	p = Parameters{MaxInFlight: 1, MaxFailures: 1}
	for _, parameter := range []struct {
		key  string
		into *int
	}{{MaxInFlightParameter, &p.MaxInFlight}, {MaxFailuresParameter, &p.MaxFailures}} {
		text, set := raw[parameter.key]
		if !set {
			continue
		}
		number, err := strconv.Atoi(text)
		if err != nil || number < 1 || number > v1alpha3.MaxTargets {
			faults = append(faults, ParameterFault{parameter.key, fmt.Sprintf("%q must be a whole number from 1 to %d", resolve.Excerpt(text), v1alpha3.MaxTargets)})
			continue
		}
		*parameter.into = number
	}
	if text, set := raw[PauseParameter]; set {
		if text != "true" && text != "false" {
			faults = append(faults, ParameterFault{PauseParameter, fmt.Sprintf(`%q must be "true" or "false"`, resolve.Excerpt(text))})
		}
		p.Pause = text == "true"
	}
	return p, faults
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
// spec.parameters.maxFailures allows. It names the first. What others added to the
// targets is no host that failed. Both results are empty where another target may
// begin.
func HaltFault(targets []v1alpha3.OperationTarget, p Parameters) (resolve.Reason, string) {
	failed, first := 0, -1
	for i := range targets {
		if targets[i].Phase == v1alpha3.OperationFailed && targets[i].Stage != string(DuplicateTarget) && targets[i].Stage != string(TargetMismatch) {
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
