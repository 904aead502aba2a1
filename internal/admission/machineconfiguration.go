package admission

import "k8s.io/apimachinery/pkg/util/validation/field"

// configuration is the view of a MachineConfiguration.
type configuration struct {
	Spec templateSpec `json:"spec"`
}

// templateSpec is the part of the spec that both configuration kinds have.
type templateSpec = node[struct {
	Template node[struct {
		Host node[host] `json:"host"`
	}] `json:"template"`
}]

// configurationEdits trims spec.template.host.image.
func configurationEdits(was, now *configuration) []edit {
	return templateEdits(was.Spec, now.Spec)
}

// validateConfiguration judges spec.template.host by itself.
func validateConfiguration(r *ratchet, was, now *configuration) {
	validateTemplate(r, was.Spec, now.Spec)
}

func templateEdits(was, now templateSpec) []edit {
	return trimImage(was.Value.Template.Value.Host.Value.Image.Value, now.Value.Template.Value.Host.Value.Image.Value, "spec", "template", "host", "image")
}

func validateTemplate(r *ratchet, was, now templateSpec) {
	path := field.NewPath("spec")
	r.shape(was.raw, now.raw, "an object", path)
	path = path.Child("template")
	r.shape(was.Value.Template.raw, now.Value.Template.raw, "an object", path)
	path = path.Child("host")
	before, after := was.Value.Template.Value.Host, now.Value.Template.Value.Host
	validateHost(r, before, after, path)
	r.note("inertFormat", hostChanged(before.Value, after.Value), inertFormat(after.Value, path), path.Child("provisioningFormat"))
}
