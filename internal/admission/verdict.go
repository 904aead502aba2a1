package admission

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// Enforcement says what happens to a request that breaks a rule.
type Enforcement string

// The enforcements. Each one denies what the CRD itself refuses.
const (
	Deny             Enforcement = "deny"               // it is denied
	Warn             Enforcement = "warn"               // it is allowed, with a warning for each error
	WarnExceptFrozen Enforcement = "warn-except-frozen" // as Warn, but rules about frozen state deny
)

// Enforcements lists all of them.
var Enforcements = []string{string(Deny), string(Warn), string(WarnExceptFrozen)}

// freezing are the rules that keep a frozen pair, and the kind, the Machines and
// the end of an operation that has begun. uniqueTarget is one of them: a second
// entry for a Machine could hold another pair.
var freezing = []string{"frozenPair", "frozenTargets", "uniqueTarget", "begunOperation", "finalPhase"}

// denies reports whether an error denies the request. An unknown enforcement denies.
func (e Enforcement) denies(err *field.Error) bool {
	return e != Warn && (e != WarnExceptFrozen || slices.Contains(freezing, err.Origin))
}

// outcome is what became of a request.
type outcome string

const (
	allowed outcome = "allowed"
	denied  outcome = "denied"
	warned  outcome = "warned" // allowed although it breaks a rule
)

// verdict is the result of a review. The response, the log and the metrics are made
// from it. The zero value allows the request.
type verdict struct {
	outcome  outcome           // empty for a mutation
	err      error             // the review cannot be read
	rules    []string          // that are broken, each once
	refused  field.ErrorList   // what the request is denied for
	warnings []string          // for the client
	sources  map[string]string // audit annotations
	edits    []edit
}

// enforce makes a verdict of the errors that the rules have found.
func (e Enforcement) enforce(r *ratchet) verdict {
	v := verdict{outcome: allowed, sources: r.sources}
	for _, w := range r.warnings {
		v.warnings = append(v.warnings, w.String())
	}
	var tolerated field.ErrorList
	for _, err := range r.introduced {
		if !slices.Contains(v.rules, err.Origin) {
			v.rules = append(v.rules, err.Origin)
		}
		if e.denies(err) {
			v.refused, v.outcome = append(v.refused, err), denied
		} else {
			tolerated = append(tolerated, err)
		}
	}
	if v.outcome == allowed && len(tolerated) > 0 {
		v.outcome = warned
	}
	for _, err := range listed(tolerated) {
		v.warnings = append(v.warnings, warning("would be refused: "+err.Error()))
	}
	return v
}

// Warning is shown to the client of a request that is allowed.
type Warning struct {
	Rule    string
	Field   string // path
	Message string
}

// String returns the warning as the API server sends it.
func (w Warning) String() string { return warning(w.Field + ": " + w.Message) }

// warning cuts a text below 256 bytes, from which on the API server may cut a
// warning.
func warning(text string) string { return resolve.Cut(text, 255) }

// response answers a review. A denial has a cause for each field, with status 422,
// as for built-in kinds.
func (v verdict) response(req admission.Request) admission.Response {
	if v.err != nil {
		return admission.Errored(http.StatusBadRequest, v.err)
	}
	if len(v.edits) > 0 {
		return admission.Patched("", patch(v.edits)...).WithWarnings(trimWarnings(v.edits)...)
	}
	response := admission.Allowed("")
	if v.outcome == denied {
		name := req.Name
		if name == "" {
			name = generateName(req.Object.Raw)
		}
		status := apierrors.NewInvalid(schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind}, resolve.Cut(name, longestName), listed(v.refused)).Status()
		response = admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &status}}
	}
	response.AuditAnnotations = v.sources
	if len(v.rules) > 0 {
		response.AuditAnnotations = map[string]string{"rules": strings.Join(v.rules, ","), "outcome": string(v.outcome)}
		maps.Copy(response.AuditAnnotations, v.sources)
	}
	return response.WithWarnings(v.warnings...)
}

// longestName is the longest name that the API server accepts. A longer one in a
// review was sent by another client.
const longestName = validation.DNS1123SubdomainMaxLength

// generateName stands in for the name of an object that has none yet.
func generateName(raw []byte) string {
	var object struct {
		Metadata struct {
			GenerateName string `json:"generateName"`
		} `json:"metadata"`
	}
	if json.Unmarshal(raw, &object) != nil || object.Metadata.GenerateName == "" {
		return ""
	}
	return object.Metadata.GenerateName + "*"
}

// maxListed bounds how many errors, or warnings, one answer lists: an operation
// may have thousands of targets.
const maxListed = 8

// listed cuts errors to maxListed. The last one then says how many are left out.
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
