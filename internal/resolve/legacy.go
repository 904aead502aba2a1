package resolve

import "unbounded-cloud.io/hostformat/api/v1alpha3"

// LegacyTarget is a target of an operation from before the format field.
type LegacyTarget struct {
	Index   int    // in status.targets
	Machine string // that it is for
}

// LegacyTargets returns the targets of a decoded MachineOperation that are
// still to be carried out and have no format: their snapshot is from before
// the field. An absent, null or empty format is none; anything else is a
// format, if a wrong one, and what is not even of the right shape is no
// snapshot. Operations of other kinds, and finished ones, have none.
func LegacyTargets(operation map[string]any) []LegacyTarget {
	spec, _ := operation["spec"].(map[string]any)
	status, _ := operation["status"].(map[string]any)
	if kind, _ := spec["operationKind"].(string); kind != string(v1alpha3.HostReplace) || finished(status) {
		return nil
	}
	var legacy []LegacyTarget
	targets, _ := status["targets"].([]any)
	for i := range targets {
		target, ok := targets[i].(map[string]any)
		if !ok || finished(target) {
			continue
		}
		input, ok := target["input"].(map[string]any)
		if !ok && target["input"] != nil {
			continue
		}
		if format := input["provisioningFormat"]; format == nil || format == "" {
			machine, _ := target["machineRef"].(string)
			legacy = append(legacy, LegacyTarget{i, machine})
		}
	}
	return legacy
}

func finished(status map[string]any) bool {
	phase, _ := status["phase"].(string)
	return v1alpha3.OperationPhase(phase).Finished()
}
