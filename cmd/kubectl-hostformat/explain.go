package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// explanation is what a HostReplace would freeze for a Machine now. Its JSON
// names are an interface: adding one is fine, renaming one is not.
type explanation struct {
	Kind         string         `json:"kind"`
	Name         string         `json:"name"`
	Image        string         `json:"image"` // empty keeps the current one
	ImageSource  resolve.Source `json:"imageSource"`
	Format       string         `json:"format"`
	FormatSource resolve.Source `json:"formatSource"`
	Version      string         `json:"version,omitempty"` // of the template that the image comes from
	Refused      string         `json:"refused"`           // why, and what to do; empty if it is not
	Reason       string         `json:"reason,omitempty"`  // the same in one word
	Note         string         `json:"note,omitempty"`    // what to keep in mind
}

type explainOptions struct {
	config   *genericclioptions.ConfigFlags
	streams  genericiooptions.IOStreams
	files    resource.FilenameOptions
	selector string
	all      bool
	output   string
	reader   *versions
	cluster  *cluster
}

func newExplain(streams genericiooptions.IOStreams) *cobra.Command {
	o := &explainOptions{config: genericclioptions.NewConfigFlags(true), streams: streams, reader: newVersions()}
	cmd := &cobra.Command{
		Use:   "explain (machine/NAME | machineoperation/NAME ... | -l SELECTOR | --all | -f FILE)",
		Short: "Show which image and format a HostReplace would freeze now, and why",
		Long: `Show which image and format a HostReplace would freeze for a Machine now, where
each half comes from, and whether it would be refused. Of an operation, show its
frozen pairs, what its Machines say today, and how they differ. With -f no
cluster is asked: Machines and versions come from the files.

Exit status: 0 if all could be replaced, 1 if one would be refused, 2 if the
question could not be answered.`,
		Example: `  kubectl hostformat explain machine/worker-1
  kubectl hostformat explain -l rack=7 -o wide
  kubectl hostformat explain mop/swap-7xk2p -o json
  kubectl hostformat explain -f manifests/`,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	flags := cmd.Flags()
	o.config.AddFlags(flags)
	flags.StringSliceVarP(&o.files.Filenames, "filename", "f", nil, "files or folders with manifests, or - for standard input; no cluster is asked")
	flags.BoolVarP(&o.files.Recursive, "recursive", "R", false, "take folders of -f with their subfolders")
	flags.StringVarP(&o.selector, "selector", "l", "", "explain the Machines with these labels")
	flags.BoolVar(&o.all, "all", false, "explain all Machines")
	addOutput(cmd, &o.output)
	return cmd
}

func (o *explainOptions) run(ctx context.Context, args []string) error {
	ways := 0
	for _, used := range []bool{len(args) > 0, o.selector != "", o.all, len(o.files.Filenames) > 0} {
		if used {
			ways++
		}
	}
	if ways != 1 {
		return errors.New("say what to explain in exactly one way: machine/NAME, -l SELECTOR, --all or -f FILE")
	}
	if err := checkOutput(o.output); err != nil {
		return err
	}
	if len(o.files.Filenames) > 0 {
		return o.explainFiles(ctx)
	}
	var err error
	if o.cluster, err = connect(o.config); err != nil {
		return err
	}
	// One list of all versions explains any number of Machines.
	err = o.cluster.each(ctx, "machineconfigurationversions", "", defaultChunk, func(raw []byte, _ int64) error { return o.reader.add(raw) })
	if err != nil {
		return err
	}
	if len(args) > 0 {
		return o.explainNamed(ctx, args)
	}
	var found []any
	err = o.cluster.each(ctx, "machines", o.selector, defaultChunk, func(raw []byte, _ int64) error {
		e, err := o.machine(ctx, raw)
		found = append(found, e)
		return err
	})
	if err != nil {
		return err
	}
	return o.print(found, true)
}

func (o *explainOptions) explainNamed(ctx context.Context, args []string) error {
	var found []any
	for _, arg := range args {
		e, err := o.named(ctx, arg)
		if err != nil {
			return err
		}
		found = append(found, e)
	}
	return o.print(found, len(args) > 1)
}

// named explains a Machine or an operation, given as kind/name.
func (o *explainOptions) named(ctx context.Context, arg string) (any, error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok || name == "" {
		return nil, fmt.Errorf("%q is not of the form machine/NAME or machineoperation/NAME", arg)
	}
	resource, err := plural(kind)
	if err != nil {
		return nil, err
	}
	if resource != "machines" && resource != "machineoperations" {
		return nil, fmt.Errorf("%s cannot be explained; name a Machine that refers to it", arg)
	}
	raw, err := o.cluster.get(ctx, resource, name)
	switch {
	case err != nil:
		return nil, err
	case resource == "machines":
		return o.machine(ctx, raw)
	default:
		return o.operation(ctx, raw)
	}
}

// explainFiles explains the Machines that manifests hold, with the versions
// that they hold.
func (o *explainOptions) explainFiles(ctx context.Context) error {
	var machines []object
	err := manifests(o.config, o.streams.In, o.files, func(obj object, source string) error {
		switch obj.Kind {
		case "Machine":
			machines = append(machines, obj)
		case "MachineConfigurationVersion":
			if err := o.reader.add(obj.raw); err != nil {
				return fmt.Errorf("%s: %w", source, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(machines) == 0 {
		return fmt.Errorf("there is no Machine in %s", strings.Join(o.files.Filenames, ", "))
	}
	var found []any
	for _, m := range machines {
		e, err := o.machine(ctx, m.raw)
		if err != nil {
			return err
		}
		found = append(found, e)
	}
	return o.print(found, len(machines) > 1)
}

// machine explains a Machine. One that cannot be read is refused, as it would
// be by the controller: that is an answer, too.
func (o *explainOptions) machine(ctx context.Context, raw []byte) (*explanation, error) {
	machine, fault := readMachine(raw)
	if machine == nil {
		return &explanation{Kind: "Machine", Name: nameOf(raw), Refused: fault, Reason: "Unreadable"}, nil
	}
	return explainMachine(ctx, o.reader, machine)
}

// readMachine returns a Machine, or what is wrong with it.
func readMachine(raw []byte) (*v1alpha3.Machine, string) {
	machine := &v1alpha3.Machine{}
	if err := json.Unmarshal(raw, machine); err != nil {
		return nil, "the Machine cannot be read: " + err.Error() + "; correct the object"
	}
	return machine, ""
}

// explainMachine resolves a Machine as the controller does. The error is a
// failure to read, not a resolution that is refused.
func explainMachine(ctx context.Context, reader *versions, machine *v1alpha3.Machine) (*explanation, error) {
	e := &explanation{Kind: "Machine", Name: machine.Name}
	result, version, err := resolved(ctx, reader, machine)
	if refusal, ok := errors.AsType[*resolve.Error](err); ok {
		e.Refused, e.Reason = refusal.Message, string(refusal.Reason)
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	e.Image, e.ImageSource = result.Image, result.ImageSource
	e.Format, e.FormatSource = string(result.Format), result.FormatSource
	if fault := resolve.DeliveryFault(result.Pair); fault != "" {
		e.Refused, e.Reason = fault+"; the operation would fail before the provider is called", "IgnitionNotDeliverable"
	}
	observed := machine.Status.ObservedProvisioningFormat
	if result.FormatSource != resolve.FromObservation && observed != "" && observed != result.Format {
		e.Note = fmt.Sprintf("the host is observed to run %s; keep the declaration of %s until its agent has reported that", observed, result.Format)
	}
	if result.ImageSource == resolve.FromTemplate {
		e.Version = version.Name
	}
	return e, nil
}

// resolved resolves a Machine, with the version that it refers to if that is
// asked.
func resolved(ctx context.Context, reader *versions, machine *v1alpha3.Machine) (result resolve.Result, version *v1alpha3.MachineConfigurationVersion, err error) {
	if resolve.NeedsVersion(machine) {
		if version, err = resolve.Version(ctx, reader, *machine.Spec.ConfigurationRef); err != nil {
			return result, nil, err
		}
	}
	result, err = resolve.Machine(machine, version)
	return result, version, err
}

// print prints explanations; several, and those of a selection, are a list.
func (o *explainOptions) print(found []any, list bool) error {
	var value any = found
	if found == nil {
		value = []any{}
	}
	if !list {
		value = found[0]
	}
	if done, err := printAs(o.streams.Out, o.output, value); done || err != nil {
		return cmp.Or(err, refusedAny(found))
	}
	w := newWriter(o.streams.Out)
	if !list {
		w.describe(found[0])
		return refusedAny(found)
	}
	if len(found) == 0 {
		fmt.Fprintln(o.streams.ErrOut, "No Machines found.")
		return nil
	}
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string"}, {Name: "Image", Type: "string"}, {Name: "Format", Type: "string"}, {Name: "Refused", Type: "string"},
		{Name: "Image from", Type: "string", Priority: 1}, {Name: "Format from", Type: "string", Priority: 1}, {Name: "Message", Type: "string", Priority: 1},
	}}
	for _, one := range found {
		e, ok := one.(*explanation)
		if !ok {
			w.describe(one)
			continue
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{e.Name, shownImage(e), shownOr(e.Format), shownOr(e.Reason), shownOr(string(e.ImageSource)), shownOr(string(e.FormatSource)), e.Refused}})
	}
	if err := printTable(o.streams.Out, table, o.output == "wide"); err != nil {
		return err
	}
	return refusedAny(found)
}

// refusedAny is errFindings if anything that was explained is refused.
func refusedAny(found []any) error {
	for _, one := range found {
		switch e := one.(type) {
		case *explanation:
			if e.Refused != "" {
				return errFindings
			}
		case *operationExplanation:
			for _, t := range e.Targets {
				if t.Refused != "" || (!t.Frozen && t.Now != nil && t.Now.Refused != "") {
					return errFindings
				}
			}
		}
	}
	return nil
}

func nameOf(raw []byte) string {
	o, err := parse(raw)
	if err != nil {
		return "(unreadable)"
	}
	return o.name()
}
