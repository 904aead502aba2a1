package admission

import (
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Write is a write of an object, as it would be reviewed.
type Write struct {
	Kind        string // of unbounded-cloud.io/v1alpha3
	Subresource string // "status", or empty
	Was         []byte // the stored object in JSON; nil on a create
	Now         []byte // the object that is written, in JSON
}

// Verdict is what the webhook says of a write, in both directions.
type Verdict struct {
	// Errors are the faults that the write is refused for; each has the name of
	// its rule as origin.
	Errors field.ErrorList
	// Trimmed are the paths of the images that are trimmed or, where nothing
	// else is in them, removed.
	Trimmed []string
	// Warnings are shown to who writes, those of trimming not among them.
	Warnings []string
}

// Judge returns the verdict on a write, by the rules that the webhook serves
// and without a server. The error says that the write cannot be judged at all.
func Judge(w Write) (Verdict, error) {
	g, ours := guards[kind(w.Kind)][w.Subresource]
	if !ours {
		return Verdict{}, fmt.Errorf("kind %s has no rules", w.Kind)
	}
	req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Kind: kind(w.Kind), SubResource: w.Subresource, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: w.Now},
	}}
	if w.Was != nil {
		req.Operation, req.OldObject.Raw = admissionv1.Update, w.Was
	}
	edits, err := g.edits(req)
	if err != nil {
		return Verdict{}, err
	}
	v, err := g.judge(req) // rules trim by themselves
	if err != nil {
		return Verdict{}, err
	}
	verdict := Verdict{Errors: v.errs, Warnings: v.warnings}
	for _, edit := range edits {
		verdict.Trimmed = append(verdict.Trimmed, edit.String())
	}
	return verdict, nil
}
