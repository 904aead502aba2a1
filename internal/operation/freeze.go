package operation

import (
	"encoding/json"
	"fmt"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// maxStatusBytes bounds the targets of an operation at their largest. An object
// holds about 1.5 MB. A status that no longer fits after a host was replaced would
// lose the record of the replacement.
const maxStatusBytes = 1 << 20

// targetHeadroom is how much a target grows while its host is replaced: phase,
// stage, times, the record of the provider, and a message of maxMessage bytes.
const targetHeadroom = 512 + maxMessage

// freeze makes the targets of an operation, each with its whole pair and what
// pins it to a host. The fault says that their status would not fit an object.
func freeze(candidates []resolve.Candidate) ([]v1alpha3.OperationTarget, resolve.Fault) {
	tooMany := func(format string, args ...any) ([]v1alpha3.OperationTarget, resolve.Fault) {
		return nil, resolve.Fault{Reason: resolve.TooManyTargets, Message: fmt.Sprintf(format, args...) + "; select fewer with a narrower machineSelector"}
	}
	if len(candidates) > v1alpha3.MaxTargets {
		return tooMany("more than %d Machines match, which is as many as an operation holds", v1alpha3.MaxTargets)
	}
	targets := make([]v1alpha3.OperationTarget, 0, len(candidates))
	size := 0
	for _, c := range candidates {
		target := freezeTarget(c)
		raw, err := json.Marshal(target)
		if err != nil { // a target is made of strings and numbers
			panic(err)
		}
		size += len(raw) + targetHeadroom
		targets = append(targets, target)
	}
	if size > maxStatusBytes {
		return tooMany("%d Machines match, and their targets may take %d bytes where an operation has room for %d", len(candidates), size, maxStatusBytes)
	}
	return targets, resolve.Fault{}
}

func freezeTarget(c resolve.Candidate) v1alpha3.OperationTarget {
	host := resolve.HostOf(c.Machine)
	return v1alpha3.OperationTarget{
		MachineRef:         c.Machine.Name,
		Phase:              v1alpha3.OperationPending,
		Stage:              stageFrozen,
		Message:            bounded(c.Result.String()),
		ObservedGeneration: c.Machine.Generation,
		Input: &v1alpha3.OperationInput{
			HostImage:          c.Result.Image,
			ProvisioningFormat: c.Result.Format,
			MachineUID:         host.UID,
			Provider:           host.Provider,
			ProviderID:         host.ProviderID,
		},
	}
}
