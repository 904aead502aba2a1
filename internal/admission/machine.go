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
	return trimImage(was.Spec.V.Host.V.Image.V, now.Spec.V.Host.V.Image.V, "spec", "host", "image")
}

// validateMachine judges spec.host by itself, and against the observation that
// is stored: a status that the client typed will not be.
func validateMachine(was, now *machine, specChanged func() bool) verdict {
	path := field.NewPath("spec")
	faults := shape(was.Spec, now.Spec, "an object", path)
	path = path.Child("host")
	errs, found := validateHost(was.Spec.V.Host, now.Spec.V.Host, path)
	faults = append(faults, errs...)

	before, after := was.Spec.V.Host.V, now.Spec.V.Host.V
	errs = declareFormat(was.Status.V.Observed.V, after, path)
	if after.sameImage(before) && after.sameFormat(before) {
		found = append(found, errs...)
	} else {
		faults = append(faults, errs...)
	}
	v := judge(faults, found, specChanged)
	if len(errs) == 0 && (!after.sameImage(before) || !after.sameFormat(before)) {
		v.annotations = sources(was.Status.V.Observed.V, after)
	}
	return v
}

// sources says in the audit log where the halves of a replacement's pair would
// come from, as far as the Machine alone tells.
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

// declareFormat refuses an image without a format on a host that is known to
// run Ignition: taken for cloud-init, the image would destroy it.
func declareFormat(observed string, h host, path *field.Path) field.ErrorList {
	if observed != string(v1alpha3.Ignition) || h.image() == "" || h.declaresFormat() {
		return nil
	}
	return field.ErrorList{field.Required(path.Child("provisioningFormat"), fmt.Sprintf(
		"must be declared because this host is known to run %s (status.observedProvisioningFormat) and %s selects %q; set it to %s or %s, whichever that image boots with",
		v1alpha3.Ignition, path.Child("image"), resolve.Excerpt(h.image()), v1alpha3.CloudInit, v1alpha3.Ignition,
	))}.WithOrigin("declareFormat")
}
