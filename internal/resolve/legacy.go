package resolve

import "unbounded-cloud.io/hostformat/api/v1alpha3"

// LegacyTarget is a target of an operation that predates the format field.
type LegacyTarget struct {
	Index   int    // in status.targets
	Machine string // of the target
}

// LegacyTargets returns the unfinished targets of a decoded MachineOperation that
// have a snapshot without a format. An absent, null or empty format is none; any
// other value is a format, even if it is not legal. An input of the wrong type is
// no snapshot. Finished operations and operations of other kinds have no such
// targets.
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
