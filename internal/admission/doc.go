// Package admission holds the rules that guard host images and their formats,
// and the adapter that serves them as admission webhooks.
//
// One file per kind holds its rules as pure functions of the stored object and
// the new one. These are the rules, by the name that denials are logged with:
//
//	shape            a judged field has its JSON type                  view.go
//	formatValue      a format is CloudInit or Ignition                 host.go
//	imageValue       an image has no invisible character, and a bound  host.go
//	declareFormat    an image on an Ignition host declares its format  machine.go
//	deployedVersion  a deployed version's spec is immutable            machineconfigurationversion.go
//	fleetSelector    a HostReplace does not have an empty selector      machineoperation.go
//	begunOperation   what has begun keeps its kind and its Machines    machineoperation.go
//	frozenPair       a frozen pair is immutable and stays              machineoperationstatus.go
//	frozenTargets    no target is added to frozen ones                 machineoperationstatus.go
//	uniqueTarget     a Machine is at most one target                   machineoperationstatus.go
//	finalPhase       a HostReplace with a frozen pair stays finished   machineoperationstatus.go
//
// Every verdict comes from the review alone, so that it is the same while the
// API server is half down, and for a dry run.
//
// Rules ratchet: on an update a rule is judged only if a field that it reads
// has changed, after trimming. An object that was stored wrong can therefore
// still be labelled, lose its finalizers and be deleted, without an exception
// for objects being deleted that would let a frozen pair change.
package admission
