package admission

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// machine is the view of a Machine.
type machine struct {
	Spec node[struct {
		Host node[host] `json:"host"`
	}] `json:"spec"`
	Status node[struct {
		Observed node[string] `json:"observedProvisioningFormat"`
	}] `json:"status"`
}

// machineEdits trims spec.host.image.
func machineEdits(was, now *machine) []edit {
	return trimImage(was.Spec.Value.Host.Value.Image.Value, now.Spec.Value.Host.Value.Image.Value, "spec", "host", "image")
}

// validateMachine judges spec.host by itself, and against the stored observation:
// the API server drops a status that the client sends along.
func validateMachine(r *ratchet, was, now *machine) {
	path := field.NewPath("spec")
	r.shape(was.Spec.raw, now.Spec.raw, "an object", path)
	path = path.Child("host")
	validateHost(r, was.Spec.Value.Host, now.Spec.Value.Host, path)

	before, after, observed := was.Spec.Value.Host.Value, now.Spec.Value.Host.Value, was.Status.Value.Observed.Value
	errs := declareFormat(observed, after, path)
	changed := hostChanged(before, after)
	r.rule("declareFormat", changed, errs)
	if changed && len(errs) == 0 {
		r.sources = sources(observed, after)
	}
}

// sources returns, for the audit log, where the halves of a replacement's pair would
// come from, as far as that is known from the Machine alone.
func sources(observed string, h host) map[string]string {
	image, format := resolve.FromMachine, resolve.FromFallback
	switch {
	case h.declaresFormat():
		format = resolve.FromMachine
	case observed != "":
		format = resolve.FromObservation
	}
	if h.image() != "" {
		return map[string]string{"image-source": string(image), "format-source": string(format)}
	}
	if h.declaresFormat() { // the image is a template's, or kept
		return map[string]string{"format-source": string(format)}
	}
	return nil
}

// declareFormat refuses an image without a format on a host that is known to run
// Ignition: booted with cloud-init, the image would destroy the node.
func declareFormat(observed string, h host, path *field.Path) field.ErrorList {
	if observed != string(v1alpha3.Ignition) || h.image() == "" || h.declaresFormat() {
		return nil
	}
	return field.ErrorList{field.Required(path.Child("provisioningFormat"), fmt.Sprintf(
		"must be declared because this host is known to run %s (status.observedProvisioningFormat) and %s selects %q; set it to %s or %s, whichever that image boots with",
		v1alpha3.Ignition, path.Child("image"), resolve.Excerpt(h.image()), v1alpha3.CloudInit, v1alpha3.Ignition,
	))}
}
