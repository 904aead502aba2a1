package resolve

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// TrimImage removes Unicode white space from both ends of an image. The rest is
// opaque: inner spaces stay. An empty result means that no image is set.
func TrimImage(image string) string { return strings.TrimSpace(image) }

// ImageFault reports why a trimmed image cannot be used, and what to do about it.
// Invisible characters (Unicode categories Cc and Cf) and images longer than
// v1alpha3.MaxImageBytes are refused and never repaired, since a repaired image
// may be another image.
func ImageFault(image string) Fault {
	if len(image) > v1alpha3.MaxImageBytes {
		return Faultf(InvalidImage, "may not be longer than %d bytes, and has %d; use the short identifier of the image",
			v1alpha3.MaxImageBytes, len(image))
	}
	position := 0
	for _, r := range image {
		position++
		if unicode.In(r, unicode.Cc, unicode.Cf) {
			return Faultf(InvalidImage, "may not contain the invisible character %U, found at position %d; type the image again instead of pasting it",
				r, position)
		}
	}
	return Fault{}
}

// FormatFault reports why a format that is set is not legal. The message lists
// the legal values and, if the intention is obvious, suggests one.
func FormatFault(format string) Fault {
	if slices.Contains(v1alpha3.ProvisioningFormats, v1alpha3.ProvisioningFormat(format)) {
		return Fault{}
	}
	message := fmt.Sprintf("supported values: %q, %q", v1alpha3.CloudInit, v1alpha3.Ignition)
	letters := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, format)
	for _, legal := range v1alpha3.ProvisioningFormats {
		if letters == strings.ToLower(string(legal)) {
			return Faultf(InvalidFormat, "%s; did you mean %q?", message, legal)
		}
	}
	return Fault{InvalidFormat, message}
}

// Excerpt cuts a value for use in a message: a long one would hide the rest of
// the message.
func Excerpt(value string) string { return Cut(value, 80) }

// Cut shortens a text to a number of bytes, at least 3, never inside a
// character. A text that was cut ends in dots.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most - len("...")
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}
