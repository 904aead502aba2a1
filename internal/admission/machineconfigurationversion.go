package admission

import "k8s.io/apimachinery/pkg/util/validation/field"

// version is the view of a MachineConfigurationVersion.
type version struct {
	Spec   templateSpec `json:"spec"`
	Status node[struct {
		Deployed node[bool] `json:"deployed"`
	}] `json:"status"`
}

// versionEdits trims spec.template.host.image.
func versionEdits(was, now *version) []edit {
	return templateEdits(was.Spec, now.Spec)
}

// validateVersion judges spec.template.host by itself, and keeps the whole spec of a
// deployed version, with the fields that we do not know.
func validateVersion(r *ratchet, was, now *version) {
	validateTemplate(r, was.Spec, now.Spec)
	if was.Status.Value.Deployed.Value && r.specChanged() {
		r.deny("deployedVersion", field.Forbidden(field.NewPath("spec"),
			"may not change because this version is deployed (status.deployed); create the next version of its configuration instead"))
	}
}
