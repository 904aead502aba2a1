package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// OperationKind is the action of a MachineOperation.
//
// +kubebuilder:validation:Enum=NodeReboot;AgentUpgrade;AgentReset;HostReboot;HostPowerOff;HostPowerOn;HostReplace
type OperationKind string

// HostReplace reinstalls a host. It is the only kind that hostformat acts on.
const HostReplace OperationKind = "HostReplace"

// OperationPhase is the progress of an operation or of one of its targets.
type OperationPhase string

// The phases. Complete and Failed are final.
const (
	OperationPending    OperationPhase = "Pending"
	OperationInProgress OperationPhase = "InProgress"
	OperationComplete   OperationPhase = "Complete"
	OperationFailed     OperationPhase = "Failed"
)

// Finished reports whether the phase is final. A final phase never changes.
func (p OperationPhase) Finished() bool { return p == OperationComplete || p == OperationFailed }

// Conditions of an operation.
const (
	// ConditionFrozen is True from the write that freezes all pairs. An operation
	// with this condition belongs to this controller.
	ConditionFrozen = "Frozen"
	// ConditionComplete is True when every target is, and False with a reason
	// when the operation has failed.
	ConditionComplete = "Complete"
	// ConditionStalled is True while a target has been held up for five minutes: by a
	// provider that does not answer or keeps failing, or by an object that cannot be
	// read. It becomes False by itself.
	ConditionStalled = "Stalled"
)

// MaxTargets is the maximum number of targets of a MachineOperation.
const MaxTargets = 6000

// MachineOperation is an action on one or more Machines that runs once. Once it
// has a phase or a target, CEL rules protect its kind, its Machines and its final
// phase, even while the webhook is down. An empty field of a selector equals an
// absent one. Only the webhook detects a new target that takes the place of
// another one.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=machineoperations,singular=machineoperation,shortName=mop,scope=Cluster
// +kubebuilder:printcolumn:name="Machine",type=string,JSONPath=`.spec.machineRef`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.operationKind`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.status.targets[*].input.hostImage`
// +kubebuilder:printcolumn:name="Format",type=string,JSONPath=`.status.targets[*].input.provisioningFormat`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.status) || !((has(oldSelf.status.phase) && oldSelf.status.phase != "") || (has(oldSelf.status.targets) && oldSelf.status.targets.size() > 0)) || (has(self.spec) && has(self.spec.operationKind) ? self.spec.operationKind : "") == (has(oldSelf.spec) && has(oldSelf.spec.operationKind) ? oldSelf.spec.operationKind : "")`,fieldPath=".spec.operationKind",reason=FieldValueForbidden,message="operationKind may not change once the operation has begun (status.phase or status.targets is set); create a new MachineOperation instead"
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.status) || !((has(oldSelf.status.phase) && oldSelf.status.phase != "") || (has(oldSelf.status.targets) && oldSelf.status.targets.size() > 0)) || (has(self.spec) && has(self.spec.machineRef) ? self.spec.machineRef : "") == (has(oldSelf.spec) && has(oldSelf.spec.machineRef) ? oldSelf.spec.machineRef : "")`,fieldPath=".spec.machineRef",reason=FieldValueForbidden,message="machineRef may not change once the operation has begun (status.phase or status.targets is set); create a new MachineOperation instead"
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.status) || !((has(oldSelf.status.phase) && oldSelf.status.phase != "") || (has(oldSelf.status.targets) && oldSelf.status.targets.size() > 0)) || ((has(self.spec) && has(self.spec.machineSelector)) == (has(oldSelf.spec) && has(oldSelf.spec.machineSelector)) && (!has(self.spec) || !has(self.spec.machineSelector) || self.spec.machineSelector == oldSelf.spec.machineSelector || ((has(self.spec.machineSelector.matchLabels) ? self.spec.machineSelector.matchLabels : {}) == (has(oldSelf.spec.machineSelector.matchLabels) ? oldSelf.spec.machineSelector.matchLabels : {}) && (has(self.spec.machineSelector.matchExpressions) ? self.spec.machineSelector.matchExpressions : []).map(e, has(e.values) && e.values.size() > 0 ? dyn(e) : dyn([e.key, e.operator])) == (has(oldSelf.spec.machineSelector.matchExpressions) ? oldSelf.spec.machineSelector.matchExpressions : []).map(e, has(e.values) && e.values.size() > 0 ? dyn(e) : dyn([e.key, e.operator])))))`,fieldPath=".spec.machineSelector",reason=FieldValueForbidden,message="machineSelector may not change once the operation has begun (status.phase or status.targets is set); create a new MachineOperation instead"
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ["Complete", "Failed"]) || (has(self.status) && has(self.status.phase) && self.status.phase == oldSelf.status.phase) || !has(oldSelf.spec) || !has(oldSelf.spec.operationKind) || oldSelf.spec.operationKind != "HostReplace" || !has(oldSelf.status.targets) || !oldSelf.status.targets.exists(t, has(t.input) && has(t.input.provisioningFormat) && t.input.provisioningFormat != "")`,fieldPath=".status.phase",reason=FieldValueForbidden,message="a final phase may not change in a HostReplace whose image and format are frozen; create a new MachineOperation instead"
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.status) || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, c.type == "Frozen" && c.status == "True") || !has(self.status) || !has(self.status.targets) || self.status.targets.size() <= (has(oldSelf.status.targets) ? oldSelf.status.targets.size() : 0)`,fieldPath=".status.targets",reason=FieldValueForbidden,message="no target may be added once the condition Frozen is True; create a new MachineOperation for another Machine"
type MachineOperation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec MachineOperationSpec `json:"spec,omitempty"`
	// +optional
	Status MachineOperationStatus `json:"status,omitempty"`
}

// MachineOperationSpec is the action and its Machines. Exactly one of machineRef
// and machineSelector must be set.
type MachineOperationSpec struct {
	// MachineRef names the Machine to act on.
	// +optional
	MachineRef string `json:"machineRef,omitempty"`

	// MachineSelector selects the Machines to act on by their labels. For a
	// HostReplace it must not be empty, because an empty selector selects the
	// whole fleet.
	// +optional
	MachineSelector *metav1.LabelSelector `json:"machineSelector,omitempty"`

	// OperationKind is the action.
	OperationKind OperationKind `json:"operationKind"`

	// Parameters are arguments of the operation kind. A HostReplace reads
	// maxInFlight (how many Machines may be in progress at the same time, until
	// they are Complete; default 1), maxFailures (how many Machines may fail
	// before the controller attempts no further one; default 1) and pause (with
	// "true", it attempts no further one).
	// +optional
	Parameters map[string]string `json:"parameters,omitempty"`

	// TTLSecondsAfterFinished is the time in seconds after which a finished
	// HostReplace is deleted. An operation that failed before it called a provider
	// is kept: if a GitOps tool created it again, it would run at an unexpected
	// time. Without this field, the operation is kept forever.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// MachineOperationStatus is the progress of the operation.
type MachineOperationStatus struct {
	// Phase is the progress of the operation. Complete and Failed are final.
	// +kubebuilder:validation:Enum=Pending;InProgress;Complete;Failed
	// +optional
	Phase OperationPhase `json:"phase,omitempty"`

	// Message explains the phase in one sentence.
	// +optional
	Message string `json:"message,omitempty"`

	// StartedAt is when the operation left Pending.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// CompletedAt is when the operation reached a final phase.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`

	// ObservedMachineGeneration is the generation of the Machine that the
	// operation was resolved from.
	// +optional
	ObservedMachineGeneration int64 `json:"observedMachineGeneration,omitempty"`

	// Targets holds one entry for each Machine that the operation acts on.
	// +listType=map
	// +listMapKey=machineRef
	// +kubebuilder:validation:MaxItems=6000
	// +optional
	Targets []OperationTarget `json:"targets,omitempty"`

	// Conditions are the latest observations of the operation's state.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// OperationTarget is the snapshot of one Machine in an operation. The CEL rule
// protects its pair while no webhook runs: first the format, then the image. A
// list of one element stands for a variable and keeps the rule within the cost
// limit. Only the webhook detects a target that is removed from the list.
//
// +kubebuilder:validation:XValidation:rule=`(!has(oldSelf.input) || !has(oldSelf.input.provisioningFormat) || (has(self.input) && has(self.input.provisioningFormat) && self.input.provisioningFormat == oldSelf.input.provisioningFormat)) && [has(oldSelf.input) && has(oldSelf.input.hostImage) ? oldSelf.input.hostImage : ""].all(was, (was.trim() == "" && !(has(oldSelf.input) && has(oldSelf.input.provisioningFormat))) || [has(self.input) && has(self.input.hostImage) ? self.input.hostImage : ""].all(now, now == was || now == was.trim()))`,fieldPath=".input",reason=FieldValueForbidden,message="input.hostImage and input.provisioningFormat are immutable once set; a client that drops one of them is older than the field: upgrade it"
type OperationTarget struct {
	// MachineRef names the Machine.
	MachineRef string `json:"machineRef"`

	// Phase is the progress of this target.
	// +optional
	Phase OperationPhase `json:"phase,omitempty"`

	// Stage is the current step of this target, or the reason why it failed.
	// +optional
	Stage string `json:"stage,omitempty"`

	// Message explains the phase and the stage in one sentence.
	// +optional
	Message string `json:"message,omitempty"`

	// StartedAt is when work on this target began.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// CompletedAt is when this target reached a final phase.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`

	// ObservedGeneration is the generation of the Machine that the input was
	// resolved from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Attempts counts the calls to the provider, including unanswered ones.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// LastAttemptAt is when the last call to the provider started.
	// +optional
	LastAttemptAt *metav1.Time `json:"lastAttemptAt,omitempty"`

	// ProviderOperation is the provider's own record of the call.
	// +optional
	ProviderOperation *ProviderOperation `json:"providerOperation,omitempty"`

	// Input is the input of the call. Its image and format are frozen together
	// before any destructive step.
	// +optional
	Input *OperationInput `json:"input,omitempty"`
}

// Accepted reports whether the provider has accepted the call for this target.
// The controller then polls its progress and does not call it again.
func (t OperationTarget) Accepted() bool {
	return t.ProviderOperation != nil && t.ProviderOperation.OperationID != ""
}

// Begun reports whether a call for this target was made, or may have been.
func (t OperationTarget) Begun() bool { return t.Attempts > 0 || t.ProviderOperation != nil }

// ProviderOperation is the provider's record of a call.
type ProviderOperation struct {
	// Provider is the provider that was called.
	Provider string `json:"provider"`

	// OperationID identifies the call at its provider.
	OperationID string `json:"operationID"`

	// ResumeToken is a token with which the provider can continue the call.
	// +optional
	ResumeToken string `json:"resumeToken,omitempty"`
}

// OperationInput is the frozen input of one target. A format without an image is
// a complete pair that keeps the current image. An input without a format was
// written before the format field existed.
type OperationInput struct {
	// HostImage is the image to install. An empty image keeps the current one.
	// Immutable once set.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	HostImage string `json:"hostImage,omitempty"`

	// ProvisioningFormat is the format of the image. Once it is set, it is
	// immutable, and so is hostImage, even if that is empty.
	// +optional
	ProvisioningFormat ProvisioningFormat `json:"provisioningFormat,omitempty"`

	// ProviderRef names the provider's own object for the host.
	// +optional
	ProviderRef *ProviderReference `json:"providerRef,omitempty"`

	// MachineUID pins the Machine that the pair was made for.
	// +optional
	MachineUID types.UID `json:"machineUID,omitempty"`

	// Provider pins the provider that replaces the host.
	// +optional
	Provider string `json:"provider,omitempty"`

	// ProviderID pins the identifier of the host at its provider.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
}

// ProviderReference names one generation of an object of a provider.
type ProviderReference struct {
	// APIGroup is the group of the object's kind.
	APIGroup string `json:"apiGroup"`

	// Kind is the kind of the object.
	Kind string `json:"kind"`

	// Name is the name of the object.
	Name string `json:"name"`

	// UID distinguishes the object from others that had its name.
	UID types.UID `json:"uid"`

	// Generation is the generation of the object.
	// +kubebuilder:validation:Minimum=1
	Generation int64 `json:"generation"`
}

// MachineOperationList is a list of MachineOperations.
//
// +kubebuilder:object:root=true
type MachineOperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MachineOperation `json:"items"`
}
