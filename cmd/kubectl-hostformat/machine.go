package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// explanation is what a HostReplace would freeze for a Machine now. Its JSON
// names are an interface: adding one is fine, renaming one is not.
type explanation struct {
	Kind         string         `json:"kind"`
	Name         string         `json:"name"`
	Image        string         `json:"image"` // empty keeps the current one
	ImageSource  resolve.Source `json:"imageSource"`
	Format       string         `json:"format"`
	FormatSource resolve.Source `json:"formatSource"`
	Version      string         `json:"version,omitempty"` // of the template that the image comes from
	Refused      string         `json:"refused"`           // why, and what to do; empty if it is not
	Reason       string         `json:"reason,omitempty"`  // the same in one word
	Note         string         `json:"note,omitempty"`    // what to keep in mind

	Provider   string            `json:"provider"`
	ProviderID string            `json:"providerID"`
	Claim      *claimExplanation `json:"claim"` // null where it cannot be told

	host       begin.Host
	pair       resolve.Pair
	unresolved bool // refused because there is no pair
	asked      bool // the cluster, for the claim
	own        bool // the operation that is explained holds the claim
}

// reasonUnreadable is the reason of what the controller does not get to judge.
const reasonUnreadable = "Unreadable"

// explainMachine explains a Machine. One that cannot be read is refused, since
// the controller cannot act on it: that is an answer, too.
func explainMachine(ctx context.Context, reader *versions, raw []byte) (*explanation, error) {
	machine, fault := readMachine(raw)
	if machine == nil {
		return &explanation{Kind: "Machine", Name: nameOf(raw), Refused: fault, Reason: reasonUnreadable}, nil
	}
	e, err := resolved(ctx, reader, machine)
	if err != nil {
		return nil, err
	}
	if e.Name == "" {
		e.Name = nameOf(raw) // of a manifest: it is still to be made
	}
	e.host = begin.HostOf(machine)
	e.host.Machine = e.Name
	e.Provider, e.ProviderID = e.host.Provider, e.host.ProviderID
	return e, nil
}

// readMachine returns a Machine, or what is wrong with it.
func readMachine(raw []byte) (*v1alpha3.Machine, string) {
	machine := &v1alpha3.Machine{}
	if err := json.Unmarshal(raw, machine); err != nil {
		return nil, "the Machine cannot be read: " + err.Error() + "; correct the object"
	}
	return machine, ""
}

// resolved resolves a Machine as the controller does, with the version that it
// refers to if that is asked, and then asks what the controller asks before it
// calls a provider, in the same order. The error is a failure to read, not a
// replacement that is refused.
func resolved(ctx context.Context, reader *versions, machine *v1alpha3.Machine) (*explanation, error) {
	e := &explanation{Kind: "Machine", Name: machine.Name}
	var version *v1alpha3.MachineConfigurationVersion
	var err error
	if resolve.NeedsVersion(machine) {
		version, err = resolve.Version(ctx, reader, *machine.Spec.ConfigurationRef)
	}
	var result resolve.Result
	if err == nil {
		result, err = resolve.Machine(machine, version)
	}
	if refusal, ok := errors.AsType[*resolve.Error](err); ok {
		e.Refused, e.Reason, e.unresolved = refusal.Message, string(refusal.Reason), true
		return e, nil
	}
	if fault, ok := errors.AsType[*unreadableVersion](err); ok {
		e.Refused, e.Reason = fault.Error()+"; correct the version", reasonUnreadable
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	e.pair = result.Pair
	e.Image, e.ImageSource = result.Image, result.ImageSource
	e.Format, e.FormatSource = string(result.Format), result.FormatSource
	if e.Reason, e.Refused = beforeCall(result.Pair, v1alpha3.OperationInput{}, machine); e.Refused != "" {
		e.Refused += "; the operation would fail before the provider is called"
	}
	observed := machine.Status.ObservedProvisioningFormat
	if result.FormatSource != resolve.FromObservation && observed != "" && observed != result.Format {
		e.Note = fmt.Sprintf("the host is observed to run %s; keep the declaration of %s until its agent has reported that", observed, result.Format)
	}
	if result.ImageSource == resolve.FromTemplate {
		e.Version = version.Name
	}
	return e, nil
}

// beforeCall says why the controller would fail a target before it calls a
// provider with a pair; both are empty if it would not.
func beforeCall(pair resolve.Pair, input v1alpha3.OperationInput, machine *v1alpha3.Machine) (reason, message string) {
	if fault := resolve.DeliveryFault(pair); fault != "" {
		return string(resolve.IgnitionNotDeliverable), fault
	}
	pin, message := resolve.PinFault(input, machine)
	return string(pin), message
}

func nameOf(raw []byte) string {
	o, err := parse(raw)
	if err != nil {
		return "(unreadable)"
	}
	return o.name()
}
