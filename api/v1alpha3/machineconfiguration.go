package v1alpha3

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Labels that tie a MachineConfigurationVersion to its MachineConfiguration.
const (
	// ConfigurationLabel holds the name of the MachineConfiguration.
	ConfigurationLabel = "unbounded-cloud.io/machine-configuration"
	// ConfigurationVersionLabel holds the number of the version, in decimal.
	ConfigurationVersionLabel = "unbounded-cloud.io/machine-configuration-version"
)

// RestoreLabel is what Velero sets on each object that it creates in a restore. A
// configuration with it and without status.latestVersion gets no version.
const RestoreLabel = "velero.io/restore-name"

// ConditionVersionCurrent of a configuration is True while its newest version has its
// template, and False with a reason while something is in the way of that.
const ConditionVersionCurrent = "VersionCurrent"

// MachineConfiguration is a template that many Machines share. Its versions
// are separate objects, MachineConfigurationVersions.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=machineconfigurations,singular=machineconfiguration,shortName=mc,scope=Cluster
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.template.host.image`
// +kubebuilder:printcolumn:name="Format",type=string,JSONPath=`.spec.template.host.provisioningFormat`
// +kubebuilder:printcolumn:name="Latest",type=integer,JSONPath=`.status.latestVersion`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MachineConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec MachineConfigurationSpec `json:"spec,omitempty"`
	// +optional
	Status MachineConfigurationStatus `json:"status,omitempty"`
}

// MachineConfigurationSpec is the template of the next version.
type MachineConfigurationSpec struct {
	// Template is the common part of all Machines of this configuration.
	// +optional
	Template MachineTemplate `json:"template,omitempty"`
}

// MachineTemplate is the common part of all Machines of one configuration.
type MachineTemplate struct {
	// Host declares the image and its format for Machines without an image. A
	// format without an image has no effect.
	// +optional
	Host *HostTemplate `json:"host,omitempty"`
}

// MachineConfigurationStatus is the observed state of a configuration.
type MachineConfigurationStatus struct {
	// LatestVersion is the highest version number that was ever used. Numbers
	// are not reused.
	// +optional
	LatestVersion int32 `json:"latestVersion,omitempty"`

	// Conditions are the latest observations of the configuration's state.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MachineConfigurationList is a list of MachineConfigurations.
//
// +kubebuilder:object:root=true
type MachineConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MachineConfiguration `json:"items"`
}
