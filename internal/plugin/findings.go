package plugin

import (
	"context"
	stdjson "encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/admission"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/versions"
)

// auditObject judges a stored object as if the fields that its rules read were added
// to it now: all rules are checked. Versions are kept for the Machines that follow.
func auditObject(ctx context.Context, kind string, raw []byte, reader *auditReader, hosts *sharers) []finding {
	o, err := parse(raw)
	o.Kind = kind // the items of a list do not have one
	if err != nil {
		return []finding{unreadable(o, err)}
	}
	switch kind {
	case "Machine":
		return append(judged(o, "", onlyStatus(raw)), replacements(ctx, o, reader, hosts)...)
	case "MachineConfigurationVersion":
		findings := judged(o, "", []byte("{}"))
		if err := reader.add(raw); err != nil {
			findings = append(findings, unreadable(o, err))
		}
		return findings
	case "MachineOperation":
		findings := append(judged(o, "", nil), judged(o, "status", []byte("{}"))...)
		findings = append(findings, unreadableParameters(o)...)
		return append(findings, legacySnapshots(o)...)
	default:
		return judged(o, "", []byte("{}"))
	}
}

// auditReader resolves Machines with the versions that were read before them.
type auditReader struct {
	*memory
	resolver *versions.Resolver
}

func newAuditReader() *auditReader {
	memory := newMemory(nil)
	return &auditReader{memory, versions.NewResolver(memory)}
}

// onlyStatus returns an object without its spec.
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
		add(findTrim, "trim", path, "has surrounding whitespace, which the webhook removes; correct the manifest")
	}
	for _, warning := range verdict.Warnings { // such a write has no pre-existing errors
		add(findInert, warning.Rule, warning.Field, warning.Message)
	}
	return findings
}

// replacements returns why a HostReplace of a Machine would be refused now. If a
// second Machine names the same host, that is found when the second one is read, and
// reported for both.
func replacements(ctx context.Context, o object, reader *auditReader, hosts *sharers) []finding {
	shared := hosts.add(hostOf(o.raw))
	if machine, _ := readMachine(o.raw); len(shared) == 0 || machine == nil {
		shared = slices.DeleteFunc(shared, func(f finding) bool { return f.Name == o.name() })
		return append(replacement(ctx, o, reader), shared...)
	}
	return shared
}

// sharers finds Machines that name one host. It keeps the first Machine of each
// host, and whether that was reported.
type sharers struct{ first map[string]sharer }

type sharer struct {
	machine  string
	reported bool
}

func newSharers() *sharers { return &sharers{map[string]sharer{}} }

// add returns the findings that a Machine brings, for itself and for the first
// one that names its host.
func (s *sharers) add(host resolve.Host) []finding {
	if host.ProviderID == "" {
		return nil
	}
	name := host.ClaimName()
	first, known := s.first[name]
	if !known {
		s.first[name] = sharer{machine: host.Machine}
		return nil
	}
	fault := resolve.SharedFault(host, []string{first.machine})
	var findings []finding
	for _, machine := range []string{host.Machine, first.machine} {
		if machine == host.Machine || !first.reported {
			findings = append(findings, finding{Finding: findReplace, Rule: string(fault.Reason), Kind: "Machine", Name: machine, Message: fault.Message})
		}
	}
	s.first[name] = sharer{first.machine, true}
	return findings
}

// replacement returns why a HostReplace of a Machine would be refused now.
func replacement(ctx context.Context, o object, reader *auditReader) []finding {
	e, err := explainMachine(ctx, reader.resolver, o.raw)
	if err != nil || e.Refused == "" {
		return nil // reads from memory do not fail
	}
	return []finding{{Finding: findReplace, Rule: string(e.Reason), Kind: o.Kind, Name: o.name(), Message: e.Refused}}
}

// order holds the fields of a MachineOperation that are judged beyond the rules of
// the webhook.
type order struct {
	Spec struct {
		OperationKind v1alpha3.OperationKind `json:"operationKind"`
		Parameters    map[string]string      `json:"parameters"`
	} `json:"spec"`
	Status struct {
		Phase v1alpha3.OperationPhase `json:"phase"`
	} `json:"status"`
}

// unreadableParameters returns the values of spec.parameters for which the controller
// would refuse a HostReplace. In a finished one, they do not matter any more.
func unreadableParameters(o object) []finding {
	var op order
	if o.Kind != "MachineOperation" || json.Unmarshal(o.raw, &op) != nil || op.Spec.OperationKind != v1alpha3.HostReplace || op.Status.Phase.Finished() {
		return nil
	}
	var findings []finding
	for _, fault := range resolve.ParameterFaults(op.Spec.Parameters) {
		findings = append(findings, finding{Finding: findReplace, Rule: string(resolve.InvalidParameters), Kind: o.Kind, Name: o.name(),
			Field: "spec.parameters." + fault.Key, Message: fault.Message + "; correct the value"})
	}
	return findings
}

// fixedName warns of a manifest of a HostReplace that has a name. Stored objects
// always have one, so only manifests are checked.
func fixedName(o object) []finding {
	var op order
	_ = json.Unmarshal(o.raw, &op) // an object of another shape has a finding of its own
	if o.Kind != "MachineOperation" || o.Metadata.Name == "" || op.Spec.OperationKind != v1alpha3.HostReplace {
		return nil
	}
	return []finding{{Finding: findWarn, Rule: "fixedName", Kind: o.Kind, Name: o.name(), Field: "metadata.name",
		Message: "a HostReplace is an order, not a state, and its name replaces a host once: when a GitOps tool creates it again, the controller refuses it (NameUsed), or starts it then if it had not replaced anything; use metadata.generateName with kubectl create, or with a hook of the tool"}}
}

// legacySnapshots returns the unfinished targets of an operation whose format is not
// frozen.
func legacySnapshots(o object) []finding {
	var operation map[string]any
	if json.Unmarshal(o.raw, &operation) != nil {
		return nil // an object of another shape has a finding already
	}
	var findings []finding
	for _, target := range resolve.LegacyTargets(operation) {
		findings = append(findings, finding{Finding: findLegacy, Rule: "legacySnapshot", Kind: o.Kind, Name: o.name(),
			Field:   fmt.Sprintf("status.targets[%d].input.provisioningFormat", target.Index),
			Message: fmt.Sprintf("the snapshot for Machine %s predates the format field: its format is resolved again at each attempt; let the operation finish, or delete it and create a new one", resolve.Excerpt(target.Machine))})
	}
	return findings
}
