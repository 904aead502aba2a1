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

// MachineSpec is the desired state of a host.
type MachineSpec struct {
	// Host declares the image for a replacement of the host, and the provider.
	// +optional
	Host *MachineHost `json:"host,omitempty"`

	// ConfigurationRef names the configuration whose template supplies the
	// image if the Machine has no image.
	// +optional
	ConfigurationRef *ConfigurationReference `json:"configurationRef,omitempty"`

	// Provider is the legacy form of host.external.provider. It is used only if
	// that is absent.
	// +optional
	Provider string `json:"provider,omitempty"`

	// ProviderID is the legacy form of host.external.providerID. It is used only
	// if host.external.provider is absent.
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

	// Version pins one version. The default is the highest version of the
	// configuration.
	// +optional
	Version *int32 `json:"version,omitempty"`
}

// MachineStatus is the observed state of a host.
type MachineStatus struct {
	// ObservedProvisioningFormat is the format that the host was installed
	// with, as reported by its agent. It is never inferred. Do not edit it:
	// declare a new format in spec.host instead.
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
