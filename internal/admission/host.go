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

func (h host) image() string { return resolve.TrimImage(h.Image.V) }

// declaresFormat tells whether anything is written as format, legal or not.
func (h host) declaresFormat() bool { return h.Format.V != "" || h.Format.wrong != "" }

// sameImage compares images after trimming.
func (h host) sameImage(other host) bool {
	return h.image() == other.image() && h.Image.wrong == other.Image.wrong
}

// sameFormat compares formats as they are, since a format is never repaired.
func (h host) sameFormat(other host) bool { return h.Format == other.Format }

// validateHost judges the values of an image and its format. It returns the
// faults that this write brings, and those that it found stored.
func validateHost(was, now node[host], path *field.Path) (faults, found field.ErrorList) {
	faults = shape(was, now, "an object", path)
	faults = append(faults, shape(was.V.Image, now.V.Image, "a string", path.Child("image"))...)

	sameImage, sameFormat := now.V.sameImage(was.V), now.V.sameFormat(was.V)
	errs := formatValue(now.V.Format, path.Child("provisioningFormat"))
	// A new image takes on the format beside it, however old that is.
	if !sameFormat || (!sameImage && now.V.image() != "") {
		faults = append(faults, errs...)
	} else {
		found = append(found, errs...)
	}
	errs = imageValue(now.V.image(), path.Child("image"))
	if !sameImage {
		faults = append(faults, errs...)
	} else {
		found = append(found, errs...)
	}
	return faults, found
}

// formatValue refuses a format outside the enum, of whatever JSON type. An
// empty one counts as absent.
func formatValue(format node[string], path *field.Path) field.ErrorList {
	fault := resolve.FormatFault(format.V)
	if !fault.Found() || (format.V == "" && format.wrong == "") {
		return nil
	}
	err := field.NotSupported(path, format.shown(), v1alpha3.ProvisioningFormats)
	err.Detail = fault.Message // names what was meant, too
	return field.ErrorList{err}.WithOrigin("formatValue")
}

// imageValue refuses a trimmed image that no provider could know.
func imageValue(image string, path *field.Path) field.ErrorList {
	fault := resolve.ImageFault(image)
	if !fault.Found() {
		return nil
	}
	err := field.Invalid(path, resolve.Excerpt(image), fault.Message)
	if len(image) > v1alpha3.MaxImageBytes {
		err.Type = field.ErrorTypeTooLong
	}
	return field.ErrorList{err}.WithOrigin("imageValue")
}

// inertFormat warns of a template's format that has no image beside it:
// resolution ignores it.
func inertFormat(was, now host, path *field.Path) []string {
	inert := now.declaresFormat() && now.image() == ""
	if !inert || (now.sameImage(was) && now.sameFormat(was)) {
		return nil
	}
	return []string{warning(path.Child("provisioningFormat").String() + ": has no effect without an image beside it; set " +
		path.Child("image").String() + ", or declare the format in the Machine")}
}

// trimImage returns the edit that removes surrounding whitespace from an image
// at the given path, or the whole field where nothing else is in it. An image
// that is stored already as it is stays untouched: a label edit never changes
// a spec.
func trimImage(was, now string, path ...string) []edit {
	trimmed := resolve.TrimImage(now)
	switch {
	case now == was || now == trimmed:
		return nil
	case trimmed == "":
		return []edit{{path: path}}
	default:
		return []edit{{path: path, value: &trimmed}}
	}
}
