// Package admission holds the rules that guard host images and their formats,
// and serves them as admission webhooks.
//
// A review comes in at Handle (webhook.go), which finds the guard of its resource.
// review.go decodes the two objects into views that hold only the fields that rules
// read. The file of the kind runs its rules on them and hands their errors to the
// ratchet (ratchet.go), which alone decides whether an error denies, warns or does
// not matter. verdict.go makes one verdict of the result, and from it the response;
// metrics.go counts it. These are the rules:
//
//	shape            a judged field has its JSON type                  ratchet.go
//	formatValue      a format is CloudInit or Ignition                 host.go
//	imageValue       an image has no invisible character, and a bound  host.go
//	declareFormat    an image on an Ignition host declares its format  machine.go
//	deployedVersion  a deployed version's spec is immutable            machineconfigurationversion.go
//	fleetSelector    a HostReplace does not have an empty selector     machineoperation.go
//	begunOperation   a begun operation keeps its kind and Machines     machineoperation.go
//	frozenPair       a frozen pair is immutable and stays              machineoperationstatus.go
//	frozenTargets    no target is added to frozen ones                 machineoperationstatus.go
//	uniqueTarget     a Machine is at most one target                   machineoperationstatus.go
//	finalPhase       a HostReplace with a frozen pair stays finished   machineoperationstatus.go
//
// A verdict depends on the review alone. It is the same during an outage of the API
// server, and for a dry run.
//
// Rules ratchet: on an update, a rule denies only if a field that it reads has
// changed, after trimming. An object that was stored with an error can still be
// labelled, lose its finalizers and be deleted. This needs no exception for objects
// that are being deleted, which would let a frozen pair change.
package admission
