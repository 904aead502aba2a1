package admission

import (
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Write is a create or an update of an object that the webhook would review.
type Write struct {
	Kind        string // of unbounded-cloud.io/v1alpha3
	Subresource string // "status", or empty
	Was         []byte // the stored object in JSON; nil on a create
	Now         []byte // the new object in JSON
}

// Verdict is the result of a write in both directions.
type Verdict struct {
	// Errors deny the write. The origin of each is the name of its rule.
	Errors field.ErrorList
	// Trimmed are the paths of the images that are trimmed or, if they hold only
	// whitespace, removed.
	Trimmed []string
	// Warnings are shown to the client. Those about trimming are not among them.
	Warnings []Warning
}

// Judge returns the verdict on a write by the rules that the webhook serves, without
// a server. The error says that the write cannot be judged.
func Judge(w Write) (Verdict, error) {
	g, guarded := guards[kind(w.Kind)][w.Subresource]
	if !guarded {
		return Verdict{}, fmt.Errorf("kind %s has no rules", w.Kind)
	}
	req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Kind: kind(w.Kind), SubResource: w.Subresource, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: w.Now},
	}}
	if w.Was != nil {
		req.Operation, req.OldObject.Raw = admissionv1.Update, w.Was
	}
	r, err := g.read(req)
	if err != nil {
		return Verdict{}, err
	}
	rules, err := r.judge() // rules compare trimmed values
	if err != nil {
		return Verdict{}, err
	}
	verdict := Verdict{Errors: rules.introduced, Warnings: rules.warnings}
	for _, edit := range r.edits() {
		verdict.Trimmed = append(verdict.Trimmed, edit.String())
	}
	return verdict, nil
}
