package resolve

import (
	"fmt"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// The reasons why a Machine cannot be replaced with what was frozen for it.
const (
	// NotResolved is a snapshot from before the format field that no format can
	// be found for, InvalidPair what PairFault says, and IgnitionNotDeliverable
	// what DeliveryFault says; the others are PinFault's.
	NotResolved            Reason = "NotResolved"
	InvalidPair            Reason = "InvalidPair"
	IgnitionNotDeliverable Reason = "IgnitionNotDeliverable"

	MachineNotFound Reason = "MachineNotFound"
	MachineDeleting Reason = "MachineDeleting"
	MachineReplaced Reason = "MachineReplaced"
	ProviderChanged Reason = "ProviderChanged"
)

// PinFault says why a Machine is not, or no longer, the one that a target was
// frozen for: the reason, and a sentence. Both are empty where it is. A nil
// Machine is one that does not exist; an input that pins nothing, as others
// write it, leaves what holds for every Machine.
func PinFault(input v1alpha3.OperationInput, machine *v1alpha3.Machine) (Reason, string) {
	if machine == nil {
		return MachineNotFound, "the Machine does not exist any more"
	}
	provider, id := Provider(machine)
	switch {
	case machine.DeletionTimestamp != nil:
		return MachineDeleting, "the Machine is being deleted"
	case input.MachineUID != "" && input.MachineUID != machine.UID:
		return MachineReplaced, fmt.Sprintf("the machine was replaced: the pair was frozen for a Machine of this name with UID %s, and this one has %s", input.MachineUID, machine.UID)
	case input.Provider != "" && input.Provider != provider:
		return ProviderChanged, fmt.Sprintf("the pair was frozen for provider %q, and the Machine now says %q", input.Provider, provider)
	case input.Provider != "" && input.ProviderID != id:
		return ProviderChanged, fmt.Sprintf("the pair was frozen for providerID %q, and the Machine now says %q", input.ProviderID, id)
	}
	return "", ""
}
