package v1alpha3

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Machine is a host of the fleet.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=machines,singular=machine,shortName=mach,scope=Cluster
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.host.image`
// +kubebuilder:printcolumn:name="Format",type=string,JSONPath=`.spec.host.provisioningFormat`,description="declared format of the image"
// +kubebuilder:printcolumn:name="Observed",type=string,JSONPath=`.status.observedProvisioningFormat`,description="format of the installed host"
// +kubebuilder:printcolumn:name="Provider",type=string,priority=1,JSONPath=`.spec.host.external.provider`
// +kubebuilder:printcolumn:name="Configuration",type=string,priority=1,JSONPath=`.spec.configurationRef.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Machine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec MachineSpec `json:"spec,omitempty"`
	// +optional
	Status MachineStatus `json:"status,omitempty"`
}

// MachineSpec is what is wanted of a host.
type MachineSpec struct {
	// Host declares what the host is replaced with, and who replaces it.
	// +optional
	Host *MachineHost `json:"host,omitempty"`

	// ConfigurationRef names the configuration whose template supplies the
	// image where the Machine has none of its own.
	// +optional
	ConfigurationRef *ConfigurationReference `json:"configurationRef,omitempty"`

	// Provider is the legacy spelling of host.external.provider, read only
	// where that is absent.
	// +optional
	Provider string `json:"provider,omitempty"`

	// ProviderID is the legacy spelling of host.external.providerID, read only
	// where host.external.provider is absent.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
}

// MachineHost is the declaration of a single host.
type MachineHost struct {
	HostTemplate `json:",inline"`

	// External names the provider that replaces this host.
	// +optional
	External *ExternalHost `json:"external,omitempty"`
}

// ExternalHost is a host as its provider knows it.
type ExternalHost struct {
	// Provider names the provider that replaces this host.
	// +kubebuilder:validation:MinLength=1
	Provider string `json:"provider"`

	// ProviderID identifies the host at its provider.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
}

// ConfigurationReference selects a MachineConfigurationVersion.
type ConfigurationReference struct {
	// Name of the MachineConfiguration.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// Version pins one version. Without it the highest version of the
	// configuration is used.
	// +optional
	Version *int32 `json:"version,omitempty"`
}

// MachineStatus is what is known of a host.
type MachineStatus struct {
	// ObservedProvisioningFormat is the format that the host was installed
	// with, as its agent explicitly reported it. It is never inferred; declare
	// a new format in spec.host instead of editing this observation.
	// +optional
	ObservedProvisioningFormat ProvisioningFormat `json:"observedProvisioningFormat,omitempty"`
}

// MachineList is a list of Machines.
//
// +kubebuilder:object:root=true
type MachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Machine `json:"items"`
}
