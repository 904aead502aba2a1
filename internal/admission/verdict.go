package admission

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// verdict is what a rule file says of a write: it is denied if there are
// errors. Warnings are shown, and annotations go to the audit log, either way.
type verdict struct {
	errs        field.ErrorList
	warnings    []string
	annotations map[string]string
}

// judge makes a verdict of the faults that a write brings and those that it
// found. The latter never deny; they are worth a warning once somebody edits
// the spec around them, but not to those who label or annotate.
func judge(faults, found field.ErrorList, specChanged func() bool) verdict {
	v := verdict{errs: faults}
	if len(found) > 0 && specChanged() {
		for _, err := range found {
			v.warnings = append(v.warnings, warning(fmt.Sprintf("%s: stored before and still wrong: %s", err.Field, err.ErrorBody())))
		}
	}
	return v
}

// warning keeps a text below the 256 bytes from which on the API server may
// cut a warning.
func warning(text string) string { return resolve.Cut(text, 255) }

// maxListed bounds how many errors, or warnings, one answer spells out: an
// operation may have thousands of targets.
const maxListed = 8

// listed cuts errors to maxListed; the last one then says how many are left out.
func listed(errs field.ErrorList) field.ErrorList {
	if len(errs) <= maxListed {
		return errs
	}
	last := errs[maxListed-1]
	return append(errs[:maxListed-1:maxListed-1], &field.Error{
		Type: last.Type, Field: last.Field, BadValue: last.BadValue, Origin: last.Origin,
		Detail: fmt.Sprintf("%s (and %d more errors like it)", last.Detail, len(errs)-maxListed),
	})
}

// brokenRules names the rules that errors come from, each once.
func brokenRules(errs field.ErrorList) []string {
	var names []string
	for _, err := range errs {
		if !slices.Contains(names, err.Origin) {
			names = append(names, err.Origin)
		}
	}
	return names
}
