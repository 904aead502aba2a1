package operation

import (
	"encoding/json"
	"fmt"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// resolved is what an operation is to do to one Machine.
type resolved struct {
	machine *v1alpha3.Machine
	result  resolve.Result
	version string // that the image comes from, if any
}

// maxStatusBytes bounds the targets of an operation as they may become. An
// object holds about 1.5 MB, and a status that no longer fits after a host was
// replaced would lose the record of it.
const maxStatusBytes = 1 << 20

// targetHeadroom is what a target grows by while it is worked on: phase, stage,
// times, the provider's record, and a message of maxMessage bytes.
const targetHeadroom = 512 + maxMessage

// freeze makes the targets of an operation, each with its whole pair and what
// pins it. Targets are bounded, so that their status always fits the object.
func freeze(all []resolved) ([]any, error) {
	if len(all) > v1alpha3.MaxTargets {
		return nil, fmt.Errorf("more than %d Machines match, which is as many as an operation holds; select fewer with a narrower machineSelector", v1alpha3.MaxTargets)
	}
	targets := make([]any, 0, len(all))
	size := 0
	for _, r := range all {
		target := freezeTarget(r)
		raw, err := json.Marshal(target)
		if err != nil {
			return nil, err
		}
		size += len(raw) + targetHeadroom
		targets = append(targets, target)
	}
	if size > maxStatusBytes {
		return nil, fmt.Errorf("%d Machines match, and their targets may take %d bytes where an operation has room for %d; select fewer with a narrower machineSelector", len(all), size, maxStatusBytes)
	}
	return targets, nil
}

func freezeTarget(r resolved) map[string]any {
	provider, providerID := resolve.Provider(r.machine)
	input := map[string]any{
		"provisioningFormat": string(r.result.Format),
		"machineUID":         string(r.machine.UID),
		"provider":           provider,
	}
	if r.result.Image != "" {
		input["hostImage"] = r.result.Image
	}
	if providerID != "" {
		input["providerID"] = providerID
	}
	return map[string]any{
		"machineRef":         r.machine.Name,
		"phase":              string(v1alpha3.OperationPending),
		"stage":              stageFrozen,
		"message":            bounded(r.describe()),
		"observedGeneration": r.machine.Generation,
		"input":              input,
	}
}

// describe says where both halves of a pair come from.
func (r resolved) describe() string {
	image := "current image kept"
	if r.result.ImageSource != resolve.Kept {
		image = "image " + resolve.Excerpt(r.result.Image) + r.from(r.result.ImageSource)
	}
	return image + ", format " + string(r.result.Format) + r.from(r.result.FormatSource)
}

func (r resolved) from(source resolve.Source) string {
	switch source {
	case resolve.FromTemplate:
		return " from MachineConfigurationVersion " + r.version
	case resolve.FromObservation:
		return " observed"
	default:
		return " from " + string(source)
	}
}
