package admission

import (
	"fmt"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
)

// edit sets one string leaf, or removes it if value is nil. The leaf and its parents
// exist: only values that were read are edited.
type edit struct {
	path  []string
	value *string
}

// String returns the path as messages name it.
func (e edit) String() string { return strings.Join(e.path, ".") }

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// patch turns edits into JSON Patch operations, one each.
func patch(edits []edit) []jsonpatch.Operation {
	operations := make([]jsonpatch.Operation, 0, len(edits))
	for _, e := range edits {
		var pointer strings.Builder
		for _, segment := range e.path {
			pointer.WriteString("/" + pointerEscaper.Replace(segment))
		}
		if e.value == nil {
			operations = append(operations, jsonpatch.NewOperation("remove", pointer.String(), nil))
		} else {
			operations = append(operations, jsonpatch.NewOperation("replace", pointer.String(), *e.value))
		}
	}
	return operations
}

// trimWarnings returns a warning for each edit: a manifest that keeps the whitespace
// will always differ from the cluster.
func trimWarnings(edits []edit) []string {
	var warnings []string
	for i, e := range edits {
		if i == maxListed {
			return append(warnings, fmt.Sprintf("surrounding whitespace was removed from %d more images", len(edits)-i))
		}
		done := "surrounding whitespace was removed"
		if e.value == nil {
			done = "held only whitespace and was removed"
		}
		warnings = append(warnings, warning(fmt.Sprintf("%s: %s; correct the manifest, or it will keep differing from the cluster",
			e, done)))
	}
	return warnings
}
