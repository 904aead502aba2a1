// Package resolve makes every decision about a replacement: which image and
// format a host gets (resolve.go), whether an operation may start (begin.go),
// whether a target may be called for now (attempt.go), and which operation may
// replace a host (claim.go). The controller acts on these decisions, and the
// plugin explains them.
//
// All of it is pure: a decision depends on its arguments alone. A decision that
// forbids something is a Fault (reasons.go).
package resolve

import "unbounded-cloud.io/hostformat/api/v1alpha3"

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
	// Version names the MachineConfigurationVersion that the image comes from. It
	// is empty for any other source.
	Version string
}

// NeedsVersion reports whether resolving the Machine depends on a version of its
// configuration: it refers to one and has no image of its own.
func NeedsVersion(machine *v1alpha3.Machine) bool {
	return machine.Spec.ConfigurationRef != nil && TrimImage(hostOf(machine).Image) == ""
}

// Machine resolves a Machine. The version supplies the template. It is read
// only if the Machine has no image, and may be nil, which is the same as a
// template without an image. A fault is terminal: only an edit can help.
func Machine(machine *v1alpha3.Machine, version *v1alpha3.MachineConfigurationVersion) (Result, Fault) {
	declared := declaration{format: hostOf(machine).ProvisioningFormat, source: FromMachine, path: "Machine spec.host.provisioningFormat"}
	if image := TrimImage(hostOf(machine).Image); image != "" {
		return resolve(selection{image, FromMachine, "Machine spec.host.image"}, machine, declared)
	}
	if template := templateOf(version); TrimImage(template.Image) != "" {
		if declared.format == "" {
			declared = declaration{template.ProvisioningFormat, FromTemplate,
				"MachineConfigurationVersion " + version.Name + " spec.template.host.provisioningFormat"}
		}
		result, fault := resolve(selection{TrimImage(template.Image), FromTemplate,
			"MachineConfigurationVersion " + version.Name + " spec.template.host.image"}, machine, declared)
		if !fault.Found() {
			result.Version = version.Name
		}
		return result, fault
	}
	return resolve(selection{"", Kept, ""}, machine, declared)
}

// Snapshot resolves a target whose input was written before the format field
// existed: the image is the one in the snapshot (none keeps the current one),
// the format is what the Machine says now. Templates have no say.
func Snapshot(hostImage string, machine *v1alpha3.Machine) (Result, Fault) {
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
	path   string // of the image, for messages
}

// declaration is the declared format that belongs to the chosen image, if any.
type declaration struct {
	format v1alpha3.ProvisioningFormat
	source Source
	path   string
}

// resolve finds the format of an image that has been chosen.
func resolve(chosen selection, machine *v1alpha3.Machine, declared declaration) (Result, Fault) {
	if fault := ImageFault(chosen.image); fault.Found() {
		return Result{}, Faultf(fault.Reason, "%s: %q %s", chosen.path, Excerpt(chosen.image), fault.Message)
	}
	result := Result{Pair: Pair{Image: chosen.image}, ImageSource: chosen.source}

	if declared.format != "" {
		if fault := FormatFault(string(declared.format)); fault.Found() {
			return Result{}, Faultf(fault.Reason, "%s: unsupported value %q: %s", declared.path, Excerpt(string(declared.format)), fault.Message)
		}
		result.Format, result.FormatSource = declared.format, declared.source
		return result, Fault{}
	}

	observed := machine.Status.ObservedProvisioningFormat
	switch fault := FormatFault(string(observed)); {
	case observed == "":
		result.Format, result.FormatSource = v1alpha3.CloudInit, FromFallback
	case fault.Found():
		return Result{}, Faultf(fault.Reason, "Machine status.observedProvisioningFormat: unsupported value %q: %s", Excerpt(string(observed)), fault.Message)
	case observed == v1alpha3.Ignition && chosen.image != "":
		return Result{}, Faultf(FormatNotDeclared,
			"Machine spec.host.provisioningFormat: must be declared because the host is known to run Ignition and %s selects %q; set it to %s or %s, whichever the image boots with",
			chosen.path, Excerpt(chosen.image), v1alpha3.CloudInit, v1alpha3.Ignition)
	default:
		result.Format, result.FormatSource = observed, FromObservation
	}
	return result, Fault{}
}

// String says where both halves of the pair come from, for a message.
func (r Result) String() string {
	image := "current image kept"
	if r.ImageSource != Kept {
		image = "image " + Excerpt(r.Image) + r.from(r.ImageSource)
	}
	return image + ", format " + string(r.Format) + r.from(r.FormatSource)
}

func (r Result) from(source Source) string {
	switch source {
	case FromTemplate:
		return " from MachineConfigurationVersion " + r.Version
	case FromObservation:
		return " observed"
	default:
		return " from " + string(source)
	}
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

// PairFault reports why a pair is not delivered: its image or format is not
// legal, or the controllers of this project cannot deliver it. A frozen pair is
// checked again where it is read back, since it may have been written past every
// webhook.
func PairFault(pair Pair) Fault {
	if fault := ImageFault(pair.Image); fault.Found() {
		return Faultf(InvalidPair, "input.hostImage: %q %s", Excerpt(pair.Image), fault.Message)
	}
	if fault := FormatFault(string(pair.Format)); fault.Found() {
		return Faultf(InvalidPair, "input.provisioningFormat: unsupported value %q: %s", Excerpt(string(pair.Format)), fault.Message)
	}
	fault := deliveryFault(pair)
	if fault.Found() {
		fault.Message += "; the provider was not called"
	}
	return fault
}

// deliveryFault reports why the controllers of this project cannot deliver a
// legal pair.
func deliveryFault(pair Pair) Fault {
	if pair.Format == v1alpha3.Ignition {
		return Fault{IgnitionNotDeliverable, "the image boots with Ignition, and this controller generates cloud-init only"}
	}
	return Fault{}
}

// Provider returns the provider that replaces the host of a Machine, and the
// identifier of the host there. The legacy fields count if spec.host.external
// names no provider.
func Provider(machine *v1alpha3.Machine) (provider, id string) {
	if host := machine.Spec.Host; host != nil && host.External != nil && host.External.Provider != "" {
		return host.External.Provider, host.External.ProviderID
	}
	return machine.Spec.Provider, machine.Spec.ProviderID
}
