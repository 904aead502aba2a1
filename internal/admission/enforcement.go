package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Enforcement says what becomes of a write that breaks a rule.
type Enforcement string

// The enforcements. What the CRD itself refuses stays refused under each.
const (
	Deny             Enforcement = "deny"               // it is refused
	Warn             Enforcement = "warn"               // it is let through, with a warning of each fault
	WarnExceptFrozen Enforcement = "warn-except-frozen" // as Warn, but a frozen pair and what has begun stay as they are
)

// Enforcements lists all of them.
var Enforcements = []string{string(Deny), string(Warn), string(WarnExceptFrozen)}

// split tells the faults that a write is refused for from those it is only
// warned of. An enforcement that is none of the known ones refuses.
func (e Enforcement) split(errs field.ErrorList) (refused, tolerated field.ErrorList) {
	for _, err := range errs {
		if e == Warn || (e == WarnExceptFrozen && !slices.Contains(freezing, err.Origin)) {
			tolerated = append(tolerated, err)
		} else {
			refused = append(refused, err)
		}
	}
	return refused, tolerated
}

// freezing are the rules that keep a frozen pair, and what an operation that has
// begun does, to which Machines, and how it ended. A second entry of a Machine is
// among them: it could hold another pair.
var freezing = []string{"frozenPair", "frozenTargets", "uniqueTarget", "begunOperation", "finalPhase"}
