package admission

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// host is the view of an image and its format: Machine.spec.host, and
// spec.template.host of both configuration kinds.
type host struct {
	Image  node[string] `json:"image"`
	Format node[string] `json:"provisioningFormat"`
}

func (h host) image() string { return resolve.TrimImage(h.Image.Value) }

// declaresFormat reports whether the format is set, to a legal value or not.
func (h host) declaresFormat() bool { return h.Format.Value != "" || h.Format.raw != "" }

// validateHost judges the values of an image and its format.
func validateHost(r *ratchet, was, now node[host], path *field.Path) {
	r.shape(was.raw, now.raw, "an object", path)
	r.shape(was.Value.Image.raw, now.Value.Image.raw, "a string", path.Child("image"))
	before, after := was.Value, now.Value
	newImage := imageChanged(before, after)
	// A new image takes on the format beside it, however old that is.
	r.rule("formatValue", formatChanged(before, after) || (newImage && after.image() != ""), formatValue(after.Format, path.Child("provisioningFormat")))
	r.rule("imageValue", newImage, imageValue(after.image(), path.Child("image")))
}

// formatValue refuses a format outside the enum, of any JSON type. An empty format
// counts as absent.
func formatValue(format node[string], path *field.Path) field.ErrorList {
	fault := resolve.FormatFault(format.Value)
	if !fault.Found() || (format.Value == "" && format.raw == "") {
		return nil
	}
	err := field.NotSupported(path, format.shown(), v1alpha3.ProvisioningFormats)
	err.Detail = fault.Message // also suggests a value
	return field.ErrorList{err}
}

// imageValue refuses a trimmed image that no provider can know.
func imageValue(image string, path *field.Path) field.ErrorList {
	fault := resolve.ImageFault(image)
	if !fault.Found() {
		return nil
	}
	err := field.Invalid(path, resolve.Excerpt(image), fault.Message)
	if len(image) > v1alpha3.MaxImageBytes {
		err.Type = field.ErrorTypeTooLong
	}
	return field.ErrorList{err}
}

// inertFormat returns the warning of a template whose format has no image beside it:
// resolution ignores the format.
func inertFormat(h host, path *field.Path) string {
	if !h.declaresFormat() || h.image() != "" {
		return ""
	}
	return "has no effect without an image beside it; set " + path.Child("image").String() + ", or declare the format in the Machine"
}
