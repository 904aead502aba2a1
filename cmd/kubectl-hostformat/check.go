package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/manifests/crds"
)

type checkOptions struct {
	config  *genericclioptions.ConfigFlags
	streams genericiooptions.IOStreams
	files   resource.FilenameOptions
	crds    string
	output  string
}

// ownCRDs is --with-crds without a folder.
const ownCRDs = "those of hostformat"

func newCheck(streams genericiooptions.IOStreams) *cobra.Command {
	o := &checkOptions{config: genericclioptions.NewConfigFlags(false), streams: streams}
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Judge manifests by the rules of the webhook, without a cluster",
		Long: `Judge manifests by the rules of the webhook, without a cluster, as if each were
created. Kinds that hostformat does not guard are passed over, and so is status,
which a create drops: what depends on the report of an agent only a cluster can
tell (kubectl apply --dry-run=server).

Exit status: 0 clean, 1 with findings, 2 if a file cannot be read.`,
		Example: `  kubectl hostformat check -f manifests/ -R
  kustomize build . | kubectl hostformat check -f - --with-crds`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return o.run() },
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&o.files.Filenames, "filename", "f", nil, "files or folders with manifests, or - for standard input")
	flags.BoolVarP(&o.files.Recursive, "recursive", "R", false, "take folders with their subfolders")
	flags.StringVar(&o.crds, "with-crds", "", "check the schema as well: of the CRDs in a `folder`, or of hostformat's own where none is named")
	flags.Lookup("with-crds").NoOptDefVal = ownCRDs
	addOutput(cmd, &o.output)
	return cmd
}

func (o *checkOptions) run() error {
	if len(o.files.Filenames) == 0 {
		return errors.New("say what to check with -f: files or folders, or - for standard input")
	}
	if err := checkOutput(o.output); err != nil {
		return err
	}
	schemas, err := o.schemas()
	if err != nil {
		return err
	}
	out := newReport(o.streams.Out, o.output)
	err = manifests(o.config, o.streams.In, o.files, func(obj object, source string) error {
		out.read++
		findings := judged(obj, "", nil)
		if schema, known := schemas[obj.Kind]; known {
			findings = append(findings, schema.check(obj)...)
		}
		for i := range findings {
			findings[i].Source = source
		}
		return out.add(findings...)
	})
	if err != nil {
		out.abandon()
		return err
	}
	return out.close()
}

// crdSchema is what a CRD says of a kind.
type crdSchema struct {
	validator  validation.SchemaValidator
	structural *structuralschema.Structural
}

func (o *checkOptions) schemas() (map[string]crdSchema, error) {
	if o.crds == "" {
		return nil, nil
	}
	var dir fs.FS = crds.Files
	if o.crds != ownCRDs {
		dir = os.DirFS(o.crds)
	}
	files, err := fs.Glob(dir, "*.yaml")
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("--with-crds: there is no *.yaml in %s", o.crds)
	}
	schemas := map[string]crdSchema{}
	for _, file := range files {
		text, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			var crd apiextensionsv1.CustomResourceDefinition
			if err := yaml.Unmarshal(document, &crd); err != nil {
				return nil, fmt.Errorf("--with-crds: %s: %w", file, err)
			}
			if crd.Kind != "CustomResourceDefinition" {
				continue
			}
			schema, err := newCRDSchema(crd)
			if err != nil {
				return nil, fmt.Errorf("--with-crds: %s: %w", file, err)
			}
			schemas[crd.Spec.Names.Kind] = schema
		}
	}
	return schemas, nil
}

func newCRDSchema(crd apiextensionsv1.CustomResourceDefinition) (crdSchema, error) {
	for _, version := range crd.Spec.Versions {
		if version.Schema == nil || version.Name != "v1alpha3" {
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
	return crdSchema{}, fmt.Errorf("%s has no version v1alpha3", crd.Name)
}

// check says what the schema refuses, and what it does not know and the API
// server would drop.
func (s crdSchema) check(o object) []finding {
	var content map[string]any
	if err := json.Unmarshal(o.raw, &content); err != nil {
		return []finding{unreadable(o, err)}
	}
	var findings []finding
	for _, fault := range validation.ValidateCustomResource(nil, content, s.validator) {
		findings = append(findings, finding{Finding: findSchema, Rule: "schema", Kind: o.Kind, Name: o.name(), Field: fault.Field, Message: fault.ErrorBody()})
	}
	unknown := pruning.PruneWithOptions(content, s.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		findings = append(findings, finding{Finding: findSchema, Rule: "schema", Kind: o.Kind, Name: o.name(), Field: strings.TrimPrefix(path, "."), Message: "is not known to the CRD and would be dropped; correct its name, or upgrade the CRD"})
	}
	return findings
}
