package v1alpha3

// ProvisioningFormat says how a host image takes its first-boot
// configuration. The absence of a format is never a format of its own.
//
// +kubebuilder:validation:Enum=CloudInit;Ignition
type ProvisioningFormat string

// The formats, exactly as they are spelt in the API.
const (
	CloudInit ProvisioningFormat = "CloudInit"
	Ignition  ProvisioningFormat = "Ignition"
)

// ProvisioningFormats lists every legal format, in the order in which messages
// name them.
var ProvisioningFormats = []ProvisioningFormat{CloudInit, Ignition}

// MaxImageBytes bounds a host image, in bytes after trimming.
const MaxImageBytes = 2048

// HostTemplate is the image that a host is replaced with, and its format.
type HostTemplate struct {
	// Image identifies the host image to the provider. It is opaque: nothing
	// is ever derived from it. Surrounding whitespace is removed on admission,
	// and an image that is only whitespace counts as absent.
	// +optional
	Image string `json:"image,omitempty"`

	// ProvisioningFormat declares whether the image boots with cloud-init or
	// with Ignition. Declare it whenever you set an image. It is never
	// defaulted.
	// +optional
	ProvisioningFormat ProvisioningFormat `json:"provisioningFormat,omitempty"`
}
