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
func validateConfiguration(was, now *configuration, r *ratchet) {
	validateTemplate(was.Spec, now.Spec, r)
}

func templateEdits(was, now templateSpec) []edit {
	return trimImage(was.Value.Template.Value.Host.Value.Image.Value, now.Value.Template.Value.Host.Value.Image.Value, "spec", "template", "host", "image")
}

func validateTemplate(was, now templateSpec, r *ratchet) {
	path := field.NewPath("spec")
	shape(was, now, "an object", path, r)
	path = path.Child("template")
	shape(was.Value.Template, now.Value.Template, "an object", path, r)
	path = path.Child("host")
	before, after := was.Value.Template.Value.Host, now.Value.Template.Value.Host
	validateHost(before, after, path, r)
	inertFormat(before.Value, after.Value, path, r)
}
