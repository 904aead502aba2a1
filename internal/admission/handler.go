package admission

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// guard holds the rules of one resource, or of one of its subresources.
type guard interface {
	// edits returns what a write should have been.
	edits(req admission.Request) ([]edit, error)
	// judge returns the verdict on a write. The error is one of the review, not
	// of what is written.
	judge(req admission.Request) (verdict, error)
}

// guardOf is the guard of a resource whose rules read a view of type T. It
// takes the place of controller-runtime's typed validators and defaulters,
// which decode whole objects: those refuse an object for a value that no rule
// reads, and their patches touch fields that nobody edited.
type guardOf[T any] struct {
	// trim are the edits of a write. Nil where nothing is edited.
	trim func(was, now *T) []edit
	// rules are the verdict on a write. On a create, was is empty.
	rules func(was, now *T, specChanged func() bool) verdict
	// needsStored refuses an update that comes without the stored object, which
	// rules would otherwise take for a create.
	needsStored bool
}

func (g guardOf[T]) edits(req admission.Request) ([]edit, error) {
	if g.trim == nil {
		return nil, nil
	}
	was, now, _, err := views[T](req)
	if err != nil {
		return nil, err
	}
	return g.trim(was, now), nil
}

func (g guardOf[T]) judge(req admission.Request) (verdict, error) {
	was, now, specChanged, err := views[T](req)
	if err != nil {
		return verdict{}, err
	}
	if g.needsStored && req.Operation == admissionv1.Update && absent(req.OldObject.Raw) {
		return verdict{}, fmt.Errorf("an update of %s cannot be judged without the stored object", req.Kind.Kind)
	}
	return g.rules(was, now, specChanged), nil
}

// views reads the two objects of a review. Without a stored object, was is
// empty. Whether the spec has changed compares fields that no view knows, too.
func views[T any](req admission.Request) (was, now *T, specChanged func() bool, err error) {
	if absent(req.Object.Raw) {
		return nil, nil, nil, fmt.Errorf("the review of %s %s holds no object", req.Operation, req.Kind.Kind)
	}
	now, after, err := read[T](req.Object.Raw)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("the object of the review cannot be read: %w", err)
	}
	was, before := new(T), any(nil)
	if req.Operation == admissionv1.Update && !absent(req.OldObject.Raw) {
		if was, before, err = read[T](req.OldObject.Raw); err != nil {
			return nil, nil, nil, fmt.Errorf("the stored object of the review cannot be read: %w", err)
		}
	}
	return was, now, func() bool { return !reflect.DeepEqual(before, after) }, nil
}

func absent(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// mutate answers with the edits. A review of the wrong shape is let through as
// it is: the schema, which the API server applies next, words that better.
func mutate(g guard, req admission.Request, _ Enforcement) admission.Response {
	edits, err := g.edits(req)
	if err != nil || len(edits) == 0 {
		return admission.Allowed("")
	}
	countTrims(req, len(edits))
	return admission.Patched("", patch(edits)...).WithWarnings(trimWarnings(edits)...)
}

// validate answers with the verdict, as far as it is enforced. A review of the
// wrong shape is refused.
func validate(g guard, req admission.Request, enforcement Enforcement) admission.Response {
	v, err := g.judge(req)
	if err != nil {
		countVerdict(req, denied, unreadable)
		return admission.Errored(http.StatusBadRequest, err)
	}
	refused, tolerated := enforcement.split(v.errs)
	response, result := admission.Allowed(""), allowed
	if len(tolerated) > 0 {
		result = warned
		for _, err := range listed(tolerated) {
			v.warnings = append(v.warnings, warning("would be refused: "+err.Error()))
		}
	}
	if len(refused) > 0 {
		response, result = refusal(req, refused), denied
	}
	response.AuditAnnotations = v.annotations
	if len(v.errs) == 0 {
		countVerdict(req, result, noRule)
		return response.WithWarnings(v.warnings...)
	}
	rules := brokenRules(v.errs)
	countVerdict(req, result, rules...)
	response.AuditAnnotations = map[string]string{"rules": strings.Join(rules, ","), "outcome": string(result)}
	maps.Copy(response.AuditAnnotations, v.annotations)
	return response.WithWarnings(v.warnings...)
}

// refusal answers as built-in kinds do: 422, with a cause for each field.
func refusal(req admission.Request, errs field.ErrorList) admission.Response {
	name := req.Name
	if name == "" {
		name = generateName(req.Object.Raw)
	}
	status := apierrors.NewInvalid(schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind}, resolve.Cut(name, longestName), listed(errs)).Status()
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &status}}
}

// longestName is the most that the API server takes: more comes from somebody else.
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

// handler finds the guard for a review by what the review says it is about,
// whatever path it arrived at, and answers in one direction.
type handler struct {
	direction   func(guard, admission.Request, Enforcement) admission.Response
	enforcement Enforcement
}

// Handle answers a review. Other operations than create and update, and
// subresources without a guard, are none of our business; another kind means
// that the webhook configuration is wrong, and is refused.
func (h handler) Handle(ctx context.Context, req admission.Request) admission.Response {
	subresources, ours := guards[req.Kind]
	if !ours {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf(
			"hostformat does not guard kind %s of %s/%s; correct the rules of the webhook configuration", req.Kind.Kind, req.Kind.Group, req.Kind.Version))
	}
	if err := ctx.Err(); err != nil {
		return admission.Errored(http.StatusServiceUnavailable, fmt.Errorf("the caller is gone: %w", err))
	}
	g, ours := subresources[req.SubResource]
	if !ours || (req.Operation != admissionv1.Create && req.Operation != admissionv1.Update) {
		return admission.Allowed("")
	}
	response := h.direction(g, req, h.enforcement)
	if rules := response.AuditAnnotations["rules"]; rules != "" || !response.Allowed {
		message := strings.Join(response.Warnings, "; ")
		if !response.Allowed {
			message = response.Result.Message
		}
		logf.FromContext(ctx).Info(cmp.Or(response.AuditAnnotations["outcome"], string(denied)), "rules", rules, "message", message)
	}
	return response
}
