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

// validateVersion judges spec.template.host by itself, and keeps the whole
// spec of a deployed version as it is, fields that we do not know included.
func validateVersion(was, now *version, specChanged func() bool) verdict {
	v := validateTemplate(was.Spec, now.Spec, specChanged)
	if was.Status.V.Deployed.V && specChanged() {
		v.errs = append(v.errs, field.ErrorList{field.Forbidden(field.NewPath("spec"),
			"may not change because this version is deployed (status.deployed); create the next version of its configuration instead",
		)}.WithOrigin("deployedVersion")...)
	}
	return v
}
