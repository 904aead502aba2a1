package resolve

import (
	"fmt"
	"strconv"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// The keys of spec.parameters that a HostReplace reads. It ignores all other keys.
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

// ParameterFault is a value of spec.parameters that cannot be parsed. The message
// says what is allowed, and does not name the key.
type ParameterFault struct{ Key, Message string }

// ReadParameters parses spec.parameters. The fault names the first value that
// cannot be parsed, and says what is allowed.
func ReadParameters(raw map[string]string) (Parameters, Fault) {
	p, faults := parseParameters(raw)
	if len(faults) > 0 {
		return p, Faultf(InvalidParameters, "spec.parameters.%s: %s", faults[0].Key, faults[0].Message)
	}
	return p, Fault{}
}

// ParameterFaults returns all values of spec.parameters that cannot be parsed, in
// a fixed order.
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
			faults = append(faults, ParameterFault{parameter.key, fmt.Sprintf("%q must be a whole number from 1 to %d", Excerpt(text), v1alpha3.MaxTargets)})
			continue
		}
		*parameter.into = number
	}
	if text, set := raw[PauseParameter]; set {
		if text != "true" && text != "false" {
			faults = append(faults, ParameterFault{PauseParameter, fmt.Sprintf(`%q must be "true" or "false"`, Excerpt(text))})
		}
		p.Pause = text == "true"
	}
	return p, faults
}
