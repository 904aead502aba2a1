// Package resolve decides which image a host is replaced with, and in which
// format that image takes its first-boot configuration.
//
// The decision is a pure function of a Machine and at most one version of its
// configuration. Only versions.go reads from the API.
package resolve

import (
	"fmt"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// Source says where one half of a pair comes from.
type Source string

// The sources, as messages name them.
const (
	FromMachine     Source = "machine"         // spec.host of the Machine
	FromTemplate    Source = "template"        // spec.template.host of a version
	FromObservation Source = "observation"     // status.observedProvisioningFormat
	FromFallback    Source = "legacy fallback" // nothing declared, nothing observed
	FromSnapshot    Source = "snapshot"        // the input of an operation's target
	Kept            Source = "kept"            // the image that the host has
)

// Pair is an image with its format. An empty Image keeps the image that the
// host has; the Format is never empty.
type Pair struct {
	Image  string
	Format v1alpha3.ProvisioningFormat
}

// Result is a pair, and where each half comes from.
type Result struct {
	Pair
	ImageSource, FormatSource Source
}

// Reason classifies what makes a replacement impossible.
type Reason string

// The reasons why nothing can be resolved. Each is terminal: trying again
// without an edit cannot help.
const (
	FormatNotDeclared Reason = "FormatNotDeclared"
	InvalidFormat     Reason = "InvalidFormat"
	InvalidImage      Reason = "InvalidImage"
	VersionNotFound   Reason = "VersionNotFound"
	VersionMismatch   Reason = "VersionMismatch"
	VersionDeleting   Reason = "VersionDeleting"
)

// Error is a resolution that is impossible until somebody edits an object. Any
// other error of this package is a failure to read, worth another try.
type Error struct {
	Reason  Reason
	Message string // one sentence: where, what, and what to do next
}

func (e *Error) Error() string { return e.Message }

func errorf(reason Reason, format string, args ...any) error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// NeedsVersion tells whether resolving the Machine depends on a version of its
// configuration: it refers to one and has no image of its own.
func NeedsVersion(machine *v1alpha3.Machine) bool {
	return machine.Spec.ConfigurationRef != nil && TrimImage(hostOf(machine).Image) == ""
}

// Machine resolves a Machine. The version supplies the template; it is read
// only where the Machine has no image, and may be nil, which is the same as a
// template without an image. The error is an *Error.
func Machine(machine *v1alpha3.Machine, version *v1alpha3.MachineConfigurationVersion) (Result, error) {
	declared := declaration{format: hostOf(machine).ProvisioningFormat, source: FromMachine, path: "Machine spec.host.provisioningFormat"}
	if image := TrimImage(hostOf(machine).Image); image != "" {
		return resolve(selection{image, FromMachine, "Machine spec.host.image"}, machine, declared)
	}
	if template := templateOf(version); TrimImage(template.Image) != "" {
		if declared.format == "" {
			declared = declaration{template.ProvisioningFormat, FromTemplate,
				"MachineConfigurationVersion " + version.Name + " spec.template.host.provisioningFormat"}
		}
		return resolve(selection{TrimImage(template.Image), FromTemplate,
			"MachineConfigurationVersion " + version.Name + " spec.template.host.image"}, machine, declared)
	}
	return resolve(selection{"", Kept, ""}, machine, declared)
}

// Snapshot resolves a target whose input was written before the format field
// existed: the image is the one in the snapshot (none keeps the current one),
// the format is what the Machine says now. Templates have no say. The error is
// an *Error.
func Snapshot(hostImage string, machine *v1alpha3.Machine) (Result, error) {
	chosen := selection{TrimImage(hostImage), FromSnapshot, "input.hostImage"}
	if chosen.image == "" {
		chosen.source = Kept
	}
	return resolve(chosen, machine, declaration{hostOf(machine).ProvisioningFormat, FromMachine, "Machine spec.host.provisioningFormat"})
}

// selection is the image that was chosen; none keeps the current one.
type selection struct {
	image  string
	source Source
	path   string // where the image stands, for messages
}

// declaration is the declared format that belongs to the chosen image, if any.
type declaration struct {
	format v1alpha3.ProvisioningFormat
	source Source
	path   string
}

// resolve finds the format of an image that has been chosen.
func resolve(chosen selection, machine *v1alpha3.Machine, declared declaration) (Result, error) {
	if fault := ImageFault(chosen.image); fault != "" {
		return Result{}, errorf(InvalidImage, "%s: %q %s", chosen.path, Excerpt(chosen.image), fault)
	}
	result := Result{Pair: Pair{Image: chosen.image}, ImageSource: chosen.source}

	if declared.format != "" {
		if fault := FormatFault(string(declared.format)); fault != "" {
			return Result{}, errorf(InvalidFormat, "%s: unsupported value %q: %s", declared.path, Excerpt(string(declared.format)), fault)
		}
		result.Format, result.FormatSource = declared.format, declared.source
		return result, nil
	}

	observed := machine.Status.ObservedProvisioningFormat
	switch fault := FormatFault(string(observed)); {
	case observed == "":
		result.Format, result.FormatSource = v1alpha3.CloudInit, FromFallback
	case fault != "":
		return Result{}, errorf(InvalidFormat, "Machine status.observedProvisioningFormat: unsupported value %q: %s", Excerpt(string(observed)), fault)
	case observed == v1alpha3.Ignition && chosen.image != "":
		return Result{}, errorf(FormatNotDeclared,
			"Machine spec.host.provisioningFormat: must be declared because the host is known to run Ignition and %s selects %q; set it to %s or %s, whichever the image boots with",
			chosen.path, Excerpt(chosen.image), v1alpha3.CloudInit, v1alpha3.Ignition)
	default:
		result.Format, result.FormatSource = observed, FromObservation
	}
	return result, nil
}

func hostOf(machine *v1alpha3.Machine) v1alpha3.HostTemplate {
	if machine.Spec.Host == nil {
		return v1alpha3.HostTemplate{}
	}
	return machine.Spec.Host.HostTemplate
}

func templateOf(version *v1alpha3.MachineConfigurationVersion) v1alpha3.HostTemplate {
	if version == nil || version.Spec.Template.Host == nil {
		return v1alpha3.HostTemplate{}
	}
	return *version.Spec.Template.Host
}

// PairFault says what makes a frozen pair unfit to be delivered; it is empty
// for one that is fit. A pair is checked again where it is read back: it may
// have been written past every webhook.
func PairFault(pair Pair) string {
	if fault := ImageFault(pair.Image); fault != "" {
		return fmt.Sprintf("input.hostImage: %q %s", Excerpt(pair.Image), fault)
	}
	if fault := FormatFault(string(pair.Format)); fault != "" {
		return fmt.Sprintf("input.provisioningFormat: unsupported value %q: %s", Excerpt(string(pair.Format)), fault)
	}
	return ""
}

// DeliveryFault says why the controllers of this project cannot deliver a pair
// that is fit; it is empty where they can.
func DeliveryFault(pair Pair) string {
	if pair.Format == v1alpha3.Ignition {
		return "the image boots with Ignition, and this controller generates cloud-init only"
	}
	return ""
}

// Provider returns who replaces the host of a Machine, and its identifier
// there. The legacy spellings count where spec.host.external names no provider.
func Provider(machine *v1alpha3.Machine) (provider, id string) {
	if host := machine.Spec.Host; host != nil && host.External != nil && host.External.Provider != "" {
		return host.External.Provider, host.External.ProviderID
	}
	return machine.Spec.Provider, machine.Spec.ProviderID
}
