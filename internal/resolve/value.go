package resolve

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// TrimImage removes Unicode white space from both ends of an image. What
// remains is opaque: inner spaces stay. An empty result means that no image is
// set.
func TrimImage(image string) string { return strings.TrimSpace(image) }

// ImageFault says what makes a trimmed image unusable, and what to do about
// it; it is empty for a usable image. Invisible characters (Unicode categories
// Cc and Cf) and images longer than v1alpha3.MaxImageBytes are refused and
// never repaired, since a repaired image may be another image.
func ImageFault(image string) string {
	if len(image) > v1alpha3.MaxImageBytes {
		return fmt.Sprintf("may not be longer than %d bytes, and has %d; use the short identifier of the image",
			v1alpha3.MaxImageBytes, len(image))
	}
	position := 0
	for _, r := range image {
		position++
		if unicode.In(r, unicode.Cc, unicode.Cf) {
			return fmt.Sprintf("may not contain the invisible character %U, found at position %d; type the image again instead of pasting it",
				r, position)
		}
	}
	return ""
}

// FormatFault says what is wrong with a format that is set, naming the legal
// values and, where the wish is plain, the one that was meant. It is empty for
// a legal format.
func FormatFault(format string) string {
	if slices.Contains(v1alpha3.ProvisioningFormats, v1alpha3.ProvisioningFormat(format)) {
		return ""
	}
	fault := fmt.Sprintf("supported values: %q, %q", v1alpha3.CloudInit, v1alpha3.Ignition)
	letters := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, format)
	for _, legal := range v1alpha3.ProvisioningFormats {
		if letters == strings.ToLower(string(legal)) {
			return fmt.Sprintf("%s; did you mean %q?", fault, legal)
		}
	}
	return fault
}

// Excerpt cuts a value for use in a message, so that a long one cannot hide
// what the message has to say.
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
