package resolve

import "unbounded-cloud.io/hostformat/api/v1alpha3"

// TargetFaults returns for each target of an operation why it cannot be one that
// the operation started with: an earlier target is for the same Machine, the
// operation is for another Machine, or all targets were frozen with pins and this
// one has none. Another client must have written it. Finished targets have no fault.
func TargetFaults(op *v1alpha3.MachineOperation) []Fault {
	faults := make([]Fault, len(op.Status.Targets))
	seen := make(map[string]bool, len(faults))
	frozen := Frozen(op)
	for i, target := range op.Status.Targets {
		again := seen[target.MachineRef]
		seen[target.MachineRef] = true
		_, pinned := PinnedHost(target)
		switch {
		case target.Phase.Finished():
		case again:
			faults[i] = Fault{DuplicateTarget, "the Machine is a target already; older CRDs let it be listed twice"}
		case target.Accepted():
		case op.Spec.MachineRef != "" && op.Spec.MachineRef != target.MachineRef:
			faults[i] = Faultf(TargetMismatch, "spec.machineRef names Machine %q, and this target is for another one; it was added by another client", Excerpt(op.Spec.MachineRef))
		case frozen && !pinned:
			faults[i] = Fault{TargetMismatch, "the targets of this operation were frozen with a Machine UID and a provider, and this one lacks them; it was added or changed by another client"}
		}
	}
	return faults
}

// Pace says whether further targets of an operation may begin. Targets that have
// begun continue whatever it says.
type Pace struct {
	// Paused keeps targets waiting, until an edit of spec.parameters.
	Paused bool
	// Room is how many targets may begin now.
	Room int
	// Halted fails every target that has not begun: too many have failed.
	Halted Fault
}

// PaceOf returns the pace that the parameters of an operation allow, given its
// targets. Targets wait while a parameter cannot be parsed.
func PaceOf(parameters map[string]string, targets []v1alpha3.OperationTarget) Pace {
	p, fault := ReadParameters(parameters)
	pace := Pace{Paused: p.Pause || fault.Found(), Room: p.MaxInFlight}
	failed, first := 0, -1
	for i := range targets {
		target := &targets[i]
		if target.Begun() && !target.Phase.Finished() {
			pace.Room--
		}
		// Targets that other clients have added do not count as failed hosts.
		if target.Phase == v1alpha3.OperationFailed && target.Stage != string(DuplicateTarget) && target.Stage != string(TargetMismatch) {
			if failed++; failed == 1 {
				first = i
			}
		}
	}
	if failed >= p.MaxFailures {
		pace.Halted = Faultf(Halted, "not replaced: Machine %q failed (%s), and no further host is begun once %d failed (spec.parameters.%s)",
			targets[first].MachineRef, Cut(targets[first].Message, 200), p.MaxFailures, MaxFailuresParameter)
	}
	return pace
}

// RecordFault reports why no attempt at a target may be recorded. It needs no
// reads.
func (p Pace) RecordFault(target v1alpha3.OperationTarget) Fault {
	if !target.Begun() && !p.Paused && p.Halted.Found() {
		return p.Halted
	}
	if pair := FrozenPair(target); pair.Format != "" {
		return PairFault(pair)
	}
	return Fault{}
}

// FrozenPair returns the pair of a target as it was frozen. A legacy snapshot has
// no format.
func FrozenPair(target v1alpha3.OperationTarget) Pair {
	input := inputOf(target)
	return Pair{Image: TrimImage(input.HostImage), Format: input.ProvisioningFormat}
}

func inputOf(target v1alpha3.OperationTarget) v1alpha3.OperationInput {
	if target.Input == nil {
		return v1alpha3.OperationInput{}
	}
	return *target.Input
}

// Facts are what a call depends on, read live right before it.
type Facts struct {
	// Machine is nil if it does not exist.
	Machine *v1alpha3.Machine
	// Claim is the claim on its host. Nil is one that is not known: it is not
	// checked.
	Claim *Claim
	// Serves reports whether a provider is registered. Nil does not check it.
	Serves func(provider string) bool
}

// Call is what a provider would be called with.
type Call struct {
	Host   Host
	Result Result
	// Legacy is set if the target has a legacy snapshot, whose format was resolved
	// now.
	Legacy bool
}

// CallOf decides whether the provider may be called for a target, and with what.
// The call is filled in as far as it could be decided, also beside a fault.
func CallOf(op Holder, target v1alpha3.OperationTarget, facts Facts) (call Call, fault Fault) {
	if fault := pinFault(inputOf(target), facts.Machine); fault.Found() {
		return call, fault
	}
	call.Host = HostOf(facts.Machine)
	if facts.Serves != nil && !facts.Serves(call.Host.Provider) {
		return call, Faultf(ProviderChanged, "provider %q is not registered here", call.Host.Provider)
	}
	call.Result.Pair = FrozenPair(target)
	if call.Result.Format == "" {
		call.Legacy = true
		if call.Result, fault = Snapshot(inputOf(target).HostImage, facts.Machine); fault.Found() {
			return call, Fault{NotResolved, fault.Message}
		}
	}
	if fault := PairFault(call.Result.Pair); fault.Found() {
		return call, fault
	}
	if facts.Claim != nil {
		return call, facts.Claim.HoldFault(op, call.Host)
	}
	return call, Fault{}
}

// pinFault reports why a Machine is not, or no longer, the one that a target was
// frozen for. A nil Machine does not exist. If the input pins nothing, as those of
// other clients, only the faults that need no pins remain.
func pinFault(input v1alpha3.OperationInput, machine *v1alpha3.Machine) Fault {
	if machine == nil {
		return Fault{MachineNotFound, "the Machine does not exist any more"}
	}
	provider, id := Provider(machine)
	switch {
	case machine.DeletionTimestamp != nil:
		return Fault{MachineDeleting, "the Machine is being deleted"}
	case input.MachineUID != "" && input.MachineUID != machine.UID:
		return Faultf(MachineReplaced, "the machine was replaced: the pair was frozen for a Machine of this name with UID %s, and this one has %s", input.MachineUID, machine.UID)
	case input.Provider != "" && input.Provider != provider:
		return Faultf(ProviderChanged, "the pair was frozen for provider %q, and the Machine now says %q", input.Provider, provider)
	case input.Provider != "" && input.ProviderID != id:
		return Faultf(ProviderChanged, "the pair was frozen for providerID %q, and the Machine now says %q", input.ProviderID, id)
	}
	return Fault{}
}

// MachineFault reports why a replacement of a Machine would be refused, or would
// fail before the provider is called, whatever the claim on its host.
func MachineFault(c Candidate) Fault {
	if fault := SharedFault(HostOf(c.Machine), c.Sharing); fault.Found() {
		return fault
	}
	if c.Fault.Found() {
		return c.Fault
	}
	fault := deliveryFault(c.Result.Pair)
	if !fault.Found() {
		fault = pinFault(v1alpha3.OperationInput{}, c.Machine)
	}
	if fault.Found() {
		fault.Message += "; the operation would fail before the provider is called"
	}
	return fault
}

// Differences lists what differs between a target and its Machine now: image,
// format, machineUID, provider, providerID. frozen is the pair of the target, and
// now what the Machine resolves to. A pair without a format has none to compare.
func Differences(target v1alpha3.OperationTarget, frozen Pair, machine *v1alpha3.Machine, now Pair) []string {
	input := inputOf(target)
	provider, id := Provider(machine)
	differs := []string{}
	for _, field := range []struct {
		name      string
		different bool
	}{
		{"format", frozen.Format != "" && now.Format != frozen.Format},
		{"image", now.Image != frozen.Image},
		{"machineUID", input.MachineUID != "" && input.MachineUID != machine.UID},
		{"provider", input.Provider != "" && input.Provider != provider},
		{"providerID", input.Provider != "" && input.ProviderID != id},
	} {
		if field.different {
			differs = append(differs, field.name)
		}
	}
	return differs
}
