// Package begin says what keeps an operation from being begun or carried on
// with, whatever its pairs are: from the operation, the metadata of its Machines
// and the time alone. Controller and plugin ask it.
package begin

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// The reasons why an operation is not begun or not carried on with, whatever
// its pairs are.
const (
	TooOld           resolve.Reason = "TooOld"
	InvalidSelection resolve.Reason = "InvalidSelection"
	NothingSelected  resolve.Reason = "NothingSelected"
	MachineIsNewer   resolve.Reason = "MachineIsNewer"
	RestoredCopy     resolve.Reason = "RestoredCopy"
	DuplicateTarget  resolve.Reason = "DuplicateTarget"
	TargetMismatch   resolve.Reason = "TargetMismatch"
	MixedProviders   resolve.Reason = "MixedProviders"
	TooManyTargets   resolve.Reason = "TooManyTargets"
	SchemaTooOld     resolve.Reason = "SchemaTooOld"
	UserDataTooLarge resolve.Reason = "UserDataTooLarge"
	ProviderFailed   resolve.Reason = "ProviderFailed"
)

// StartedAnnotation holds the UID of the operation that was begun. Backups and
// re-applied manifests keep annotations and lose status, so that a copy of an
// operation, or one that lost its record, is told from a new one.
const StartedAnnotation = "hostformat.unbounded-cloud.io/started"

// CopyFault says why an operation is a copy of one that was begun, or has lost
// its record; both are empty where it is neither.
func CopyFault(op *v1alpha3.MachineOperation) (resolve.Reason, string) {
	started, marked := op.Annotations[StartedAnnotation]
	switch {
	case marked && started != string(op.UID):
		return RestoredCopy, fmt.Sprintf(
			"this is a copy of the operation with UID %s, which was begun: its annotation %s says so; create a new operation if the host is to be replaced again", started, StartedAnnotation)
	case marked && len(op.Status.Targets) == 0:
		return RestoredCopy, "this operation was begun and has lost its record, as a restore from a backup does; what was done is not known: look at the host, then create a new operation"
	}
	return "", ""
}

// mostWait is how old an operation may be when it is picked up: long enough to
// outlast a controller that is restarted, or away for a while. What was meant
// longer ago than that may not be meant any more.
const mostWait = time.Hour

// SelectionFault says what makes an operation, its way of choosing Machines, or
// its parameters unfit to begin at a time; both are empty where it is fit.
// MachinesFault says it of what was chosen.
func SelectionFault(op *v1alpha3.MachineOperation, now time.Time) (resolve.Reason, string) {
	selector := op.Spec.MachineSelector
	switch {
	case now.Sub(op.CreationTimestamp.Time) > mostWait:
		return TooOld, fmt.Sprintf("the operation is older than %s and was not begun; it does not fire late: create a new operation", mostWait)
	case (op.Spec.MachineRef == "") == (selector == nil):
		return InvalidSelection, "exactly one of spec.machineRef and spec.machineSelector must say which Machines to replace; create a new operation with one of them"
	case selector != nil && len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0:
		return InvalidSelection, "an empty spec.machineSelector would replace every host of the fleet; create a new operation that selects by at least one label"
	case selector != nil:
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			return InvalidSelection, "spec.machineSelector is not a label selector: " + err.Error()
		}
	}
	if _, fault := ReadParameters(op.Spec.Parameters); fault != "" {
		return InvalidParameters, fault + "; create a new operation with a correct value"
	}
	return "", ""
}

// MachinesFault says what makes the Machines that an operation has chosen unfit
// to begin with, from their metadata alone; both are empty where they are fit.
func MachinesFault(op *v1alpha3.MachineOperation, machines []v1alpha3.Machine) (resolve.Reason, string) {
	if len(machines) == 0 {
		return NothingSelected, "no Machine matches spec.machineSelector; create a new operation when one does"
	}
	for i := range machines {
		if op.CreationTimestamp.Before(&machines[i].CreationTimestamp) {
			return MachineIsNewer, fmt.Sprintf("Machine %q was created after this operation, which does not wait to fire later; create a new operation", machines[i].Name)
		}
	}
	return "", ""
}

// NamedFault adds the name of a Machine to the message of a fault, as operations
// of several Machines need it.
func NamedFault(machine, message string) string {
	return fmt.Sprintf("Machine %q: %s", machine, message)
}

// PairFault says why a frozen pair is not delivered; both are empty where it is.
func PairFault(pair resolve.Pair) (resolve.Reason, string) {
	if message := resolve.PairFault(pair); message != "" {
		return resolve.InvalidPair, message
	}
	return UndeliverableFault("", pair, 1)
}

// UndeliverableFault says why an operation of so many Machines is refused where
// the pair of one of them cannot be delivered; both are empty where it can. One
// such pair spares the hosts of all.
func UndeliverableFault(machine string, pair resolve.Pair, machines int) (resolve.Reason, string) {
	message := resolve.DeliveryFault(pair)
	if message == "" {
		return "", ""
	}
	message += "; the provider was not called"
	if machines > 1 {
		message = NamedFault(machine, message+"; no host was replaced: correct that Machine or select without it, then create a new operation")
	}
	return resolve.IgnitionNotDeliverable, message
}

// SparedFault says why the other targets of such an operation are not replaced.
func SparedFault(undeliverable string) (resolve.Reason, string) {
	return Halted, fmt.Sprintf("not replaced: the pair of Machine %q cannot be delivered, and an operation that cannot replace all its hosts replaces none", undeliverable)
}

// DuplicateFault says why a target that is still to be carried out is not: one
// before it is for the same Machine. The Machines that were seen so far are
// kept in seen.
func DuplicateFault(seen map[string]bool, target v1alpha3.OperationTarget) (resolve.Reason, string) {
	again := seen[target.MachineRef]
	seen[target.MachineRef] = true
	if again && !target.Phase.Finished() {
		return DuplicateTarget, "the Machine is a target already; older CRDs let it be listed twice"
	}
	return "", ""
}

// TargetFault says why a target cannot be one that the operation was begun with,
// whatever else its status says: the operation is for another Machine, or its
// targets were frozen with pins and this one has none. Both are empty for a
// target that can.
func TargetFault(op *v1alpha3.MachineOperation, target v1alpha3.OperationTarget) (resolve.Reason, string) {
	if op.Spec.MachineRef != "" && op.Spec.MachineRef != target.MachineRef {
		return TargetMismatch, fmt.Sprintf("spec.machineRef names Machine %q, so that this one cannot be a target; it was added by another client", resolve.Excerpt(op.Spec.MachineRef))
	}
	if _, pinned := PinnedHost(target); !pinned && meta.IsStatusConditionTrue(op.Status.Conditions, v1alpha3.ConditionFrozen) {
		return TargetMismatch, "the targets of this operation were frozen with a Machine UID and a provider, and this one lacks them; it was added or changed by another client"
	}
	return "", ""
}

// NamesObject reports whether a reference can be the name of an object at all.
// The API server refuses any other in a path, which would look like a read that
// failed, where there is no such object.
func NamesObject(ref string) bool { return len(validation.IsDNS1123Subdomain(ref)) == 0 }
