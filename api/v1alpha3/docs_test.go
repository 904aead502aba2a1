package v1alpha3_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

var update = flag.Bool("update", false, "regenerate docs/api.md")

const page = "../../docs/api.md"

// docs/api.md has the texts of the CRDs, which are the comments in this package.
func TestAPIDocs(t *testing.T) {
	var want strings.Builder
	want.WriteString(`# The API

This page lists the fields of ` + "`unbounded-cloud.io/v1alpha3`" + ` that hostformat reads or
writes. All kinds are cluster-scoped and have a status subresource. Other projects' CRDs of
these kinds may have many more fields, which hostformat does not change. An asterisk marks a
required field.

` + "`go test ./api/v1alpha3 -update`" + ` generates this page from the CRDs.
`)
	for _, file := range []string{"machines", "machineconfigurations", "machineconfigurationversions", "machineoperations"} {
		describe(&want, read(t, filepath.Join("../../manifests/crds", "unbounded-cloud.io_"+file+".yaml")))
	}
	if *update {
		if err := os.WriteFile(page, []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Error("docs/api.md is out of date: go test ./api/v1alpha3 -update")
	}
}

// crd holds the parts of a CustomResourceDefinition that are on the page.
type crd struct {
	Spec struct {
		Names struct {
			Kind       string
			ShortNames []string
		}
		Versions []struct {
			Schema struct{ OpenAPIV3Schema property }
		}
	}
}

// property holds the parts of a field that are on the page.
type property struct {
	Description          string
	Type, Format         string
	Enum                 []string
	Minimum              *int64
	MinLength, MaxLength int64
	MaxItems             int64
	Required             []string
	Properties           map[string]property
	AdditionalProperties *property
	Items                *property
	Validations          []struct{ Message string } `json:"x-kubernetes-validations"`
}

func read(t *testing.T, file string) crd {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.ToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var c crd
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Spec.Versions) != 1 {
		t.Fatalf("%s has %d versions; this page describes one", file, len(c.Spec.Versions))
	}
	return c
}

func describe(out *strings.Builder, c crd) {
	root := c.Spec.Versions[0].Schema.OpenAPIV3Schema
	fmt.Fprintf(out, "\n## %s\n\n%s Short name: `%s`.%s\n\n", c.Spec.Names.Kind, oneLine(root.Description), strings.Join(c.Spec.Names.ShortNames, "`, `"), celRules(root))
	out.WriteString("| field | type | description |\n| --- | --- | --- |\n")
	for _, part := range []string{"spec", "status"} {
		for name, field := range ordered(root.Properties[part]) {
			rows(out, part+"."+name, field, slices.Contains(root.Properties[part].Required, name))
		}
	}
}

// Types of Kubernetes, whose documentation describes them.
var ofKubernetes = map[string]string{
	"spec.machineSelector": "[LabelSelector](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/label-selector/)",
	"status.conditions":    "list of [Condition](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/condition/)",
}

// rows writes the row of a field, and those of the fields inside it.
func rows(out *strings.Builder, path string, p property, required bool) {
	inner, suffix := p, ""
	if p.Items != nil {
		inner, suffix = *p.Items, "[]"
	}
	kind, foreign := ofKubernetes[path]
	if !foreign {
		kind = typeOf(p)
	}
	mark := ""
	if required {
		mark = " *"
	}
	says := oneLine(p.Description) + celRules(inner)
	if strings.HasPrefix(says, "UID is a type that") { // the comment of the type; the field has none
		says = ""
	}
	fmt.Fprintf(out, "| `%s`%s | %s | %s |\n", path+suffix, mark, kind, says)
	if foreign {
		return
	}
	for name, field := range ordered(inner) {
		rows(out, path+suffix+"."+name, field, slices.Contains(inner.Required, name))
	}
}

func typeOf(p property) string {
	switch {
	case len(p.Enum) > 0:
		return strings.Join(p.Enum, ", ")
	case p.Items != nil && p.MaxItems > 0:
		return fmt.Sprintf("list of %ss, at most %d", typeOf(*p.Items), p.MaxItems)
	case p.Items != nil:
		return "list of " + typeOf(*p.Items) + "s"
	case p.AdditionalProperties != nil:
		return "map of " + typeOf(*p.AdditionalProperties) + "s"
	}
	kind := p.Type
	if p.Format == "date-time" {
		kind = "time"
	} else if p.Format != "" {
		kind = p.Format
	}
	if p.Minimum != nil {
		kind += fmt.Sprintf(", at least %d", *p.Minimum)
	}
	if p.MinLength > 0 {
		kind += ", not empty"
	}
	if p.MaxLength > 0 {
		kind += fmt.Sprintf(", at most %d characters", p.MaxLength)
	}
	return kind
}

// celRules returns the CEL rules of a value.
func celRules(p property) string {
	var text strings.Builder
	for _, rule := range p.Validations {
		text.WriteString(" CEL rule: " + rule.Message + ".")
	}
	return text.String()
}

func ordered(p property) func(func(string, property) bool) {
	return func(yield func(string, property) bool) {
		for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
			if !yield(name, p.Properties[name]) {
				return
			}
		}
	}
}

// oneLine makes a text suitable for a table in Markdown.
func oneLine(text string) string {
	return strings.NewReplacer("<", "&lt;", "|", `\|`).Replace(strings.Join(strings.Fields(text), " "))
}
