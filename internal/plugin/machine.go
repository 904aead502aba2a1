package plugin

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/versions"
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
	Reason       resolve.Reason `json:"reason,omitempty"`  // the same in one word
	Note         string         `json:"note,omitempty"`    // what to keep in mind

	Provider   string            `json:"provider"`
	ProviderID string            `json:"providerID"`
	Claim      *claimExplanation `json:"claim"` // null if it is not known

	candidate resolve.Candidate // without a Machine if that cannot be read
	host      resolve.Host
	asked     bool // the cluster, for the claim
	own       bool // the operation that is explained holds the claim
}

// explainMachine explains a Machine. A Machine that cannot be read is refused,
// since the controller cannot act on it. The error is a failure to read.
func explainMachine(ctx context.Context, resolver *versions.Resolver, raw []byte) (*explanation, error) {
	machine, fault := readMachine(raw)
	if machine == nil {
		return &explanation{Kind: "Machine", Name: nameOf(raw), Reason: fault.Reason, Refused: fault.Message}, nil
	}
	if machine.Name == "" {
		machine.Name = nameOf(raw) // of a manifest: the Machine does not exist yet
	}
	e := &explanation{Kind: "Machine", Name: machine.Name, host: resolve.HostOf(machine), candidate: resolve.Candidate{Machine: machine}}
	e.Provider, e.ProviderID = e.host.Provider, e.host.ProviderID
	c, err := &e.candidate, error(nil)
	c.Result, _, c.Fault, err = resolver.Resolve(ctx, machine)
	if unreadable, ok := errors.AsType[*unreadableVersion](err); ok {
		c.Fault, err = resolve.Fault{Reason: resolve.Unreadable, Message: unreadable.Error() + "; correct the version"}, nil
	}
	if err != nil {
		return nil, err
	}
	fault = resolve.MachineFault(*c)
	e.Reason, e.Refused = fault.Reason, fault.Message
	e.Image, e.ImageSource, e.Version = c.Result.Image, c.Result.ImageSource, c.Result.Version
	e.Format, e.FormatSource = string(c.Result.Format), c.Result.FormatSource
	observed := machine.Status.ObservedProvisioningFormat
	if !c.Fault.Found() && c.Result.FormatSource != resolve.FromObservation && observed != "" && observed != c.Result.Format {
		e.Note = fmt.Sprintf("the host is observed to run %s; keep the declaration of %s until its agent has reported that", observed, c.Result.Format)
	}
	return e, nil
}

// readMachine returns a Machine, or why it cannot be read.
func readMachine(raw []byte) (*v1alpha3.Machine, resolve.Fault) {
	machine := &v1alpha3.Machine{}
	if err := json.Unmarshal(raw, machine); err != nil {
		return nil, resolve.Fault{Reason: resolve.Unreadable, Message: "the Machine cannot be read: " + err.Error() + "; correct the object"}
	}
	return machine, resolve.Fault{}
}

func nameOf(raw []byte) string {
	o, err := parse(raw)
	if err != nil {
		return "(unreadable)"
	}
	return o.name()
}
