package resolve

import "fmt"

// Reason classifies a decision or an event in one word. Conditions, Events, the
// stage of a target that failed, and the plugin show it. docs/reference.md lists
// all of them, which a test checks.
type Reason string

// Each reason has one line here and one row in docs/reference.md.
const (
	// Of an operation as a whole.
	PairFrozen             Reason = "PairFrozen"             // the pair of every target is recorded
	Replaced               Reason = "Replaced"               // every host was replaced
	HostReplaceComplete    Reason = "HostReplaceComplete"    // Event: a target or an operation is complete
	HostReplaceFailed      Reason = "HostReplaceFailed"      // Event: a target or an operation has failed
	OperationEnded         Reason = "OperationEnded"         // Event: another client ended the operation during a call
	TooOld                 Reason = "TooOld"                 // not started within an hour
	InvalidSelection       Reason = "InvalidSelection"       // spec does not say which Machines to replace
	NothingSelected        Reason = "NothingSelected"        // no Machine matches
	TooManyTargets         Reason = "TooManyTargets"         // more Machines match than one object can hold
	InvalidParameters      Reason = "InvalidParameters"      // a value of spec.parameters cannot be parsed
	MachineIsNewer         Reason = "MachineIsNewer"         // a Machine was created after the operation
	MixedProviders         Reason = "MixedProviders"         // a provider is not registered in this controller
	RestoredCopy           Reason = "RestoredCopy"           // a copy of an operation that started before
	SchemaTooOld           Reason = "SchemaTooOld"           // the CRDs would drop fields of the record
	IgnitionNotDeliverable Reason = "IgnitionNotDeliverable" // the controller generates cloud-init only

	// Of a Machine: nothing can be resolved until somebody edits an object.
	FormatNotDeclared Reason = "FormatNotDeclared" // an image without a format on a host that runs Ignition
	InvalidFormat     Reason = "InvalidFormat"     // a format that is neither CloudInit nor Ignition
	InvalidImage      Reason = "InvalidImage"      // an image that is too long or has an invisible character
	VersionNotFound   Reason = "VersionNotFound"   // spec.configurationRef leads to no version
	VersionMismatch   Reason = "VersionMismatch"   // the version contradicts its name or its label
	VersionDeleting   Reason = "VersionDeleting"   // the pinned version is being deleted
	Unreadable        Reason = "Unreadable"        // (plugin) the object does not match the type of its kind

	// Of the claim on a host.
	HostShared     Reason = "HostShared"     // two Machines name one host
	OtherOperation Reason = "OtherOperation" // an unfinished operation holds the claim
	NameUsed       Reason = "NameUsed"       // another operation of this name has claimed the host before
	ClaimLost      Reason = "ClaimLost"      // the operation no longer holds the claim

	// Of a target.
	MachineNotFound  Reason = "MachineNotFound"  // the Machine does not exist
	MachineDeleting  Reason = "MachineDeleting"  // the Machine is being deleted
	MachineReplaced  Reason = "MachineReplaced"  // another Machine has taken the name
	ProviderChanged  Reason = "ProviderChanged"  // the Machine has another provider, or one that is not registered
	InvalidPair      Reason = "InvalidPair"      // the frozen image or format is not legal
	NotResolved      Reason = "NotResolved"      // no format can be resolved for a legacy snapshot
	UserDataTooLarge Reason = "UserDataTooLarge" // the user data exceeds what a host accepts
	ProviderFailed   Reason = "ProviderFailed"   // the provider reports a permanent failure
	Halted           Reason = "Halted"           // not replaced because of other targets
	DuplicateTarget  Reason = "DuplicateTarget"  // the Machine is a target already
	TargetMismatch   Reason = "TargetMismatch"   // the target is not one that the operation started with
	TargetFailed     Reason = "TargetFailed"     // another client failed the target without a reason
	LegacySnapshot   Reason = "LegacySnapshot"   // the snapshot predates the format field

	// Of an operation that is held up (condition Stalled).
	ProviderNotAnswering Reason = "ProviderNotAnswering" // a call of the provider has not returned
	ProviderFailing      Reason = "ProviderFailing"      // each call of the provider fails, and is repeated
	ProviderBusy         Reason = "ProviderBusy"         // all calls that the provider may have at once are outstanding
	MachineUnreadable    Reason = "MachineUnreadable"    // a Machine, a claim or the operation cannot be read
	Recovered            Reason = "Recovered"            // nothing holds the operation up any longer

	// Of a MachineConfiguration.
	VersionCut       Reason = "VersionCut"       // Event: a new version was created
	VersionCurrent   Reason = "VersionCurrent"   // the newest version has the template of the configuration
	NoFurtherVersion Reason = "NoFurtherVersion" // version numbers are used up
	NameTaken        Reason = "NameTaken"        // another object has the name of the next version
	VersionRefused   Reason = "VersionRefused"   // the API server does not accept the next version
	StatusLost       Reason = "StatusLost"       // the configuration was restored without its status
)

// Fault says why something may not be done. The zero value is no fault.
type Fault struct {
	Reason Reason
	// Message is a sentence for people: where, what, and what to do next.
	Message string
}

// Found reports whether there is a fault.
func (f Fault) Found() bool { return f.Reason != "" }

// Named returns the fault with the name of a Machine in front of its message,
// which operations on several Machines need.
func (f Fault) Named(machine string) Fault {
	if f.Found() {
		f.Message = fmt.Sprintf("Machine %q: %s", machine, f.Message)
	}
	return f
}

// Faultf returns a fault with a formatted message.
func Faultf(reason Reason, format string, args ...any) Fault {
	return Fault{reason, fmt.Sprintf(format, args...)}
}
