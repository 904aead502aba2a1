package main

import (
	"context"
	stdjson "encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/internal/admission"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// auditObject judges an object that is stored, as if what its rules read were
// written now on an object without it: all rules are asked, whatever was there
// before. Versions that it is given are kept for the Machines that follow.
func auditObject(ctx context.Context, kind string, raw []byte, reader *versions) []finding {
	o, err := parse(raw)
	o.Kind = kind // the items of a list do not have one
	if err != nil {
		return []finding{unreadable(o, err)}
	}
	switch kind {
	case "Machine":
		return append(judged(o, "", onlyStatus(raw)), replacement(ctx, o, reader)...)
	case "MachineConfigurationVersion":
		findings := judged(o, "", []byte("{}"))
		if err := reader.add(raw); err != nil {
			findings = append(findings, unreadable(o, err))
		}
		return findings
	case "MachineOperation":
		findings := append(judged(o, "", nil), judged(o, "status", []byte("{}"))...)
		return append(findings, legacySnapshots(o)...)
	default:
		return judged(o, "", []byte("{}"))
	}
}

// onlyStatus is what an object keeps when its spec is taken away.
func onlyStatus(raw []byte) []byte {
	var kept struct {
		Status stdjson.RawMessage `json:"status"`
	}
	if json.Unmarshal(raw, &kept) != nil {
		return []byte("{}")
	}
	status, err := json.Marshal(kept)
	if err != nil {
		return []byte("{}")
	}
	return status
}

// judged is what the webhook says of a write of an object over what was there;
// nil for a create.
func judged(o object, subresource string, was []byte) []finding {
	verdict, err := admission.Judge(admission.Write{Kind: o.Kind, Subresource: subresource, Was: was, Now: o.raw})
	if err != nil {
		return []finding{unreadable(o, err)}
	}
	var findings []finding
	add := func(what, rule, path, message string) {
		findings = append(findings, finding{Finding: what, Rule: rule, Kind: o.Kind, Name: o.name(), Field: path, Message: message})
	}
	for _, fault := range verdict.Errors {
		add(findRefuse, fault.Origin, fault.Field, fault.ErrorBody())
	}
	for _, path := range verdict.Trimmed {
		add(findTrim, "trim", path, "has whitespace round it, which is removed when it is written; correct the manifest")
	}
	for _, warning := range verdict.Warnings { // on such a write there is one kind only
		path, message, _ := strings.Cut(warning, ": ")
		add(findInert, "inertFormat", path, message)
	}
	return findings
}

// replacement is why a HostReplace of a Machine would be refused now, if so.
func replacement(ctx context.Context, o object, reader *versions) []finding {
	e, err := explainMachine(ctx, reader, o.raw)
	if err != nil || e.Refused == "" {
		return nil // reading from memory does not fail
	}
	return []finding{{Finding: findReplace, Rule: e.Reason, Kind: o.Kind, Name: o.name(), Message: e.Refused}}
}

// legacySnapshots are the targets of an operation that still have to be carried
// out and whose format is not frozen.
func legacySnapshots(o object) []finding {
	var operation map[string]any
	if json.Unmarshal(o.raw, &operation) != nil {
		return nil // what is of another shape was refused already
	}
	var findings []finding
	for _, target := range resolve.LegacyTargets(operation) {
		findings = append(findings, finding{Finding: findLegacy, Rule: "legacySnapshot", Kind: o.Kind, Name: o.name(),
			Field:   fmt.Sprintf("status.targets[%d].input.provisioningFormat", target.Index),
			Message: fmt.Sprintf("the snapshot for Machine %s is from before the format field: its format is resolved again at each attempt; let the operation finish, or delete it and create a new one", resolve.Excerpt(target.Machine))})
	}
	return findings
}
