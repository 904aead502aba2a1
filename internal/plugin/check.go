package plugin

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"
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
created. Kinds without rules are skipped, and so is status, which the API server
drops on a create. Rules that depend on the report of an agent need a cluster
(kubectl apply --dry-run=server).

For a HostReplace, check also reports values of spec.parameters that the controller
would refuse (replace), and warns of a metadata.name (warn): a name replaces a host
once, and tools that apply manifests again and again would repeat it. Use
metadata.generateName instead. Like every other finding, a warning ends check
with 1.

Exit status: 0 clean, 1 with findings, 2 if a file cannot be read, or if
--with-crds finds no CRD for a manifest.`,
		Example: `  kubectl hostformat check -f manifests/ -R
  kustomize build . | kubectl hostformat check -f - --with-crds`,
		Args: func(_ *cobra.Command, args []string) error { return o.noArguments(args) },
		RunE: func(*cobra.Command, []string) error { return o.run() },
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&o.files.Filenames, "filename", "f", nil, "files or folders with manifests, or - for standard input")
	flags.BoolVarP(&o.files.Recursive, "recursive", "R", false, "include subfolders")
	flags.StringVar(&o.crds, "with-crds", "", "check the schema as well, of the CRDs in a `folder` or, without a value, of hostformat's own")
	flags.Lookup("with-crds").NoOptDefVal = ownCRDs
	addOutput(cmd, &o.output)
	return cmd
}

// noArguments returns an error for an argument that belongs to no flag. A flag with an
// optional value does not take the next argument.
func (o *checkOptions) noArguments(args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case o.crds == ownCRDs:
		return fmt.Errorf("the folder of --with-crds goes after an \"=\": --with-crds=%s", args[0])
	default:
		return fmt.Errorf("manifests are named with -f: -f %s", args[0])
	}
}

func (o *checkOptions) run() error {
	if len(o.files.Filenames) == 0 {
		return errors.New("name what to check with -f: files or folders, or - for standard input")
	}
	if err := checkOutput(o.output); err != nil {
		return err
	}
	schemas, err := o.schemas()
	if err != nil {
		return err
	}
	out := newReport(o.streams.Out, o.output)
	without := map[string]int{} // manifests, by the kind that has no schema
	err = manifests(o.config, o.streams.In, o.files, func(obj object, source string) error {
		out.read++
		var findings []finding
		schema, known := schemas[obj.Kind]
		if fault := obj.misspelt(); fault != "" {
			findings = []finding{{Finding: findRefuse, Rule: "kind", Kind: obj.Kind, Name: obj.name(), Field: "kind", Message: fault}}
		} else {
			findings = append(judged(obj, "", nil), unreadableParameters(obj)...)
			findings = append(findings, fixedName(obj)...)
			if known {
				findings = append(findings, schema.check(obj)...)
			} else if schemas != nil {
				without[obj.Kind]++
			}
		}
		for i := range findings {
			findings[i].Source = source
		}
		return out.add(findings...)
	})
	if err == nil {
		err = o.missing(without)
	}
	if err != nil {
		out.abandon()
		return err
	}
	return out.close()
}

// missing returns the error for manifests without a schema: it would be wrong to call
// them clean.
func (o *checkOptions) missing(without map[string]int) error {
	if len(without) == 0 {
		return nil
	}
	total := 0
	for _, count := range without {
		total += count
	}
	judged := "manifest was judged"
	if total > 1 {
		judged = "manifests were judged"
	}
	return fmt.Errorf("--with-crds: %s has no CRD of %s, and %d %s by the rules alone; add the CRD to the folder",
		o.crds, strings.Join(slices.Sorted(maps.Keys(without)), ", "), total, judged)
}
