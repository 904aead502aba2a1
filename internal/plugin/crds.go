package plugin

import (
	"bufio"
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/manifests/crds"
)

// crdSchema is the schema of a kind.
type crdSchema struct {
	validator  validation.SchemaValidator
	structural *structuralschema.Structural
}

// schemas reads the CRDs of our kinds, by kind. It returns nil if no schema is to be
// checked. A folder without such CRDs is an error, since nothing would be checked.
func (o *checkOptions) schemas() (map[string]crdSchema, error) {
	if o.crds == "" {
		return nil, nil
	}
	var dir fs.FS = crds.Files
	if o.crds != ownCRDs {
		dir = os.DirFS(o.crds)
	}
	files, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, fmt.Errorf("--with-crds: %s: %w; name a folder that holds the CRDs", o.crds, err)
	}
	schemas := map[string]crdSchema{}
	for _, file := range files {
		if file.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(file.Name())) {
			continue
		}
		text, err := fs.ReadFile(dir, file.Name())
		if err == nil {
			err = addSchemas(schemas, text)
		}
		if err != nil {
			return nil, fmt.Errorf("--with-crds: %s: %w", file.Name(), err)
		}
	}
	if len(schemas) == 0 {
		return nil, fmt.Errorf("--with-crds: there is no CRD of %s in %s", v1alpha3.GroupVersion.Group, o.crds)
	}
	return schemas, nil
}

// addSchemas adds the schemas of the CRDs in a file.
func addSchemas(schemas map[string]crdSchema, text []byte) error {
	// The reader takes a carriage return for part of the separator.
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		raw, err := yaml.YAMLToJSON(document)
		if err != nil {
			return err
		}
		if err := addSchema(schemas, raw); err != nil {
			return err
		}
	}
}

// addSchema adds the schema of a CRD, or of each in a List, as kubectl prints them.
// It skips other objects.
func addSchema(schemas map[string]crdSchema, raw []byte) error {
	var object struct {
		Kind  string               `json:"kind"`
		Items []stdjson.RawMessage `json:"items"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return nil //nolint:nilerr // it is not a CRD
	}
	for _, item := range object.Items {
		if err := addSchema(schemas, item); err != nil {
			return err
		}
	}
	if object.Kind != "CustomResourceDefinition" {
		return nil
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal(raw, &crd); err != nil {
		return err
	}
	if crd.Spec.Group != v1alpha3.GroupVersion.Group {
		return nil
	}
	schema, err := newCRDSchema(crd)
	schemas[crd.Spec.Names.Kind] = schema
	return err
}

func newCRDSchema(crd apiextensionsv1.CustomResourceDefinition) (crdSchema, error) {
	for _, version := range crd.Spec.Versions {
		if version.Schema == nil || version.Name != v1alpha3.GroupVersion.Version {
			continue
		}
		props := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, props, nil); err != nil {
			return crdSchema{}, err
		}
		validator, _, err := validation.NewSchemaValidator(props)
		if err != nil {
			return crdSchema{}, err
		}
		structural, err := structuralschema.NewStructural(props)
		return crdSchema{validator, structural}, err
	}
	return crdSchema{}, fmt.Errorf("%s has no version %s", crd.Name, v1alpha3.GroupVersion.Version)
}

// check returns what the schema refuses when the manifest is created, and the fields
// that it does not know, which the API server would drop.
func (s crdSchema) check(o object) []finding {
	var content map[string]any
	if err := json.Unmarshal(o.raw, &content); err != nil {
		return []finding{unreadable(o, err)}
	}
	delete(content, "status") // as a create does, before it asks
	var findings []finding
	said := map[string]bool{}
	add := func(path, message string) {
		said[path] = true
		findings = append(findings, finding{Finding: findSchema, Rule: "schema", Kind: o.Kind, Name: o.name(), Field: path, Message: message})
	}
	for _, fault := range validation.ValidateCustomResource(nil, content, s.validator) {
		if fault.Field != "<nil>" {
			add(fault.Field, fault.ErrorBody())
		} else if path := firstPath.FindString(fault.Detail); path == "" || !said[path] {
			add(path, fault.Detail) // the path stands in its message only, often a second time
		}
	}
	unknown := pruning.PruneWithOptions(content, s.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		add(strings.TrimPrefix(path, "."), "is not known to the CRD and would be dropped; correct its name, or upgrade the CRD")
	}
	return findings
}

// firstPath finds the path of a field in a text.
var firstPath = regexp.MustCompile(`\b(metadata|spec)(\.[^\s.,:]+)+`)
