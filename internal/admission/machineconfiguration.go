package admission

import "k8s.io/apimachinery/pkg/util/validation/field"

// configuration is the view of a MachineConfiguration.
type configuration struct {
	Spec templateSpec `json:"spec"`
}

// templateSpec is the part that the specs of both configuration kinds share.
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
func validateConfiguration(was, now *configuration, specChanged func() bool) verdict {
	return validateTemplate(was.Spec, now.Spec, specChanged)
}

func templateEdits(was, now templateSpec) []edit {
	return trimImage(was.V.Template.V.Host.V.Image.V, now.V.Template.V.Host.V.Image.V, "spec", "template", "host", "image")
}

func validateTemplate(was, now templateSpec, specChanged func() bool) verdict {
	path := field.NewPath("spec")
	faults := shape(was, now, "an object", path)
	path = path.Child("template")
	faults = append(faults, shape(was.V.Template, now.V.Template, "an object", path)...)
	path = path.Child("host")
	before, after := was.V.Template.V.Host, now.V.Template.V.Host
	errs, found := validateHost(before, after, path)

	v := judge(append(faults, errs...), found, specChanged)
	v.warnings = append(v.warnings, inertFormat(before.V, after.V, path)...)
	return v
}
