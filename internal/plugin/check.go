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
created. Kinds that hostformat does not guard are passed over, and so is status,
which a create drops: what depends on the report of an agent only a cluster can
tell (kubectl apply --dry-run=server).

A HostReplace is also judged by what its controller would refuse: values of
spec.parameters that cannot be read (replace). One with a metadata.name brings a
warning (warn): a name replaces a host once, and tools that apply manifests again
and again would repeat it. metadata.generateName brings none. Like every other
finding, a warning ends check with 1.

Exit status: 0 clean, 1 with findings, 2 if a file cannot be read, or if
--with-crds finds no CRD for a manifest.`,
		Example: `  kubectl hostformat check -f manifests/ -R
  kustomize build . | kubectl hostformat check -f - --with-crds`,
		Args: func(_ *cobra.Command, args []string) error { return o.noArguments(args) },
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

// noArguments says what a word that belongs to no flag was meant to be. A flag
// that needs no value does not take the next word.
func (o *checkOptions) noArguments(args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case o.crds == ownCRDs:
		return fmt.Errorf("the folder of --with-crds stands after an \"=\": --with-crds=%s", args[0])
	default:
		return fmt.Errorf("manifests are named with -f: -f %s", args[0])
	}
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

// missing is the error for manifests that no schema was found for: to call them
// clean would be to answer another question.
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
	return fmt.Errorf("--with-crds: %s has no CRD of %s, and %d %s by the rules alone; add it to the folder",
		o.crds, strings.Join(slices.Sorted(maps.Keys(without)), ", "), total, judged)
}
