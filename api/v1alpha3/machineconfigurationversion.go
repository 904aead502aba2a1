package v1alpha3

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MachineConfigurationVersion is one numbered version of a
// MachineConfiguration. It may be edited until it is deployed. Its name is
// "<configuration>-v<version>".
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=machineconfigurationversions,singular=machineconfigurationversion,shortName=mcv,scope=Cluster
// +kubebuilder:printcolumn:name="Version",type=integer,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.template.host.image`
// +kubebuilder:printcolumn:name="Format",type=string,JSONPath=`.spec.template.host.provisioningFormat`
// +kubebuilder:printcolumn:name="Deployed",type=boolean,JSONPath=`.status.deployed`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.deployed) || !oldSelf.status.deployed || (has(self.spec) == has(oldSelf.spec) && (!has(self.spec) || self.spec == oldSelf.spec))",fieldPath=".spec",reason=FieldValueForbidden,message="spec is immutable once status.deployed is true; create the next version instead"
type MachineConfigurationVersion struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec MachineConfigurationVersionSpec `json:"spec,omitempty"`
	// +optional
	Status MachineConfigurationVersionStatus `json:"status,omitempty"`
}

// MachineConfigurationVersionSpec is the content of one version.
type MachineConfigurationVersionSpec struct {
	// Version is the number of this version.
	// +kubebuilder:validation:Minimum=1
	Version int32 `json:"version"`

	// Template is the common part of all Machines of this version.
	// +optional
	Template MachineTemplate `json:"template,omitempty"`
}

// MachineConfigurationVersionStatus is the observed state of a version.
type MachineConfigurationVersionStatus struct {
	// Deployed is true once a Machine uses this version. The spec is then
	// immutable.
	// +optional
	Deployed bool `json:"deployed,omitempty"`
}

// MachineConfigurationVersionList is a list of MachineConfigurationVersions.
//
// +kubebuilder:object:root=true
type MachineConfigurationVersionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MachineConfigurationVersion `json:"items"`
}
