package v1alpha3

// ProvisioningFormat is how a host image takes its first-boot configuration. A
// missing format has no meaning of its own.
//
// +kubebuilder:validation:Enum=CloudInit;Ignition
type ProvisioningFormat string

// The formats, as spelt in the API.
const (
	CloudInit ProvisioningFormat = "CloudInit"
	Ignition  ProvisioningFormat = "Ignition"
)

// ProvisioningFormats lists every valid format, in the order of messages.
var ProvisioningFormats = []ProvisioningFormat{CloudInit, Ignition}

// MaxImageBytes bounds a host image, in bytes after trimming.
const MaxImageBytes = 2048

// HostTemplate is the image that a host is replaced with, and its format.
type HostTemplate struct {
	// Image identifies the host image to the provider. It is opaque: hostformat
	// derives nothing from it. Admission removes surrounding whitespace. An image
	// that is only whitespace counts as absent.
	// +optional
	Image string `json:"image,omitempty"`

	// ProvisioningFormat declares whether the image boots with cloud-init or
	// with Ignition. Declare it whenever you set an image. It has no default.
	// +optional
	ProvisioningFormat ProvisioningFormat `json:"provisioningFormat,omitempty"`
}
