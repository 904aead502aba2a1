package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

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
frozen pairs, what its Machines say today, how they differ, and whether the
controller would fail it, or which targets. With -f no cluster is asked:
Machines and versions come from the files.

Not judged is what depends on more than these objects: on other operations on
the same Machines (OtherOperation), on how many targets fit one operation
(TooManyTargets), on CRDs that are too old (SchemaTooOld), on which providers the
controller has, on its user data (UserDataTooLarge), and on what a provider says.

Exit status: 0 if nothing would be refused, 1 if a Machine, an operation or an
unfinished target would be, 2 if the question could not be answered.`,
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
	named, err := parseNames(args)
	if err != nil {
		return err
	}
	if _, err := labels.Parse(o.selector); err != nil {
		return fmt.Errorf("-l: %w", err)
	}
	if o.cluster, err = connect(o.config); err != nil {
		return err
	}
	// One list of all versions explains any number of Machines.
	err = o.cluster.each(ctx, "machineconfigurationversions", "", defaultChunk, func(raw []byte, _ int64) error {
		_ = o.reader.add(raw) // what cannot be read is told where a Machine refers to it
		return nil
	})
	if err != nil {
		return err
	}
	if len(args) > 0 {
		return o.explainNamed(ctx, named)
	}
	var found []any
	err = o.cluster.each(ctx, "machines", o.selector, defaultChunk, func(raw []byte, _ int64) error {
		e, err := explainMachine(ctx, o.reader, raw)
		found = append(found, e)
		return err
	})
	if err != nil {
		return err
	}
	return o.print(found, true)
}

// parseNames takes Machines and operations, given as kind/name, apart.
func parseNames(args []string) (named [][2]string, err error) {
	for _, arg := range args {
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
		if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
			return nil, fmt.Errorf("%q cannot be the name of an object: %s", name, faults[0])
		}
		named = append(named, [2]string{resource, name})
	}
	return named, nil
}

func (o *explainOptions) explainNamed(ctx context.Context, named [][2]string) error {
	var found []any
	for _, one := range named {
		e, err := o.named(ctx, one[0], one[1])
		if err != nil {
			return err
		}
		found = append(found, e)
	}
	return o.print(found, len(named) > 1)
}

// named explains a Machine or an operation.
func (o *explainOptions) named(ctx context.Context, resource, name string) (any, error) {
	raw, err := o.cluster.get(ctx, resource, name)
	switch {
	case err != nil:
		return nil, err
	case resource == "machines":
		return explainMachine(ctx, o.reader, raw)
	default:
		return o.operation(ctx, raw)
	}
}

// explainFiles explains the Machines that manifests hold, with the versions
// that they hold.
func (o *explainOptions) explainFiles(ctx context.Context) error {
	var machines []object
	err := manifests(o.config, o.streams.In, o.files, func(obj object, source string) error {
		if fault := obj.misspelt(); fault != "" {
			return fmt.Errorf("%s: %s", source, fault)
		}
		switch obj.Kind {
		case "Machine":
			machines = append(machines, obj)
		case "MachineConfigurationVersion":
			_ = o.reader.add(obj.raw) // told where a Machine refers to it
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
		e, err := explainMachine(ctx, o.reader, m.raw)
		if err != nil {
			return err
		}
		found = append(found, e)
	}
	return o.print(found, len(machines) > 1)
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
	if list && len(found) == 0 {
		fmt.Fprintln(o.streams.ErrOut, "No Machines found.")
		return nil
	}
	var text bytes.Buffer
	w := writer{&text, newWriter(o.streams.Out).colours}
	var machines []*explanation
	for _, one := range found {
		if e, ok := one.(*explanation); ok && list {
			machines = append(machines, e)
		} else {
			w.describe(one)
		}
	}
	if len(machines) > 0 {
		if err := printTable(&text, explanationTable(machines, o.output == "wide"), o.output == "wide"); err != nil {
			return err
		}
	}
	_, err := o.streams.Out.Write(text.Bytes())
	return cmp.Or(err, refusedAny(found))
}

// explanationTable makes a row of each Machine. Unless it is to be wide, images
// are cut to what fits beside names, which may be copied, and reasons.
func explanationTable(machines []*explanation, wide bool) *metav1.Table {
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string"}, {Name: "Image", Type: "string"}, {Name: "Format", Type: "string"}, {Name: "Refused", Type: "string"},
		{Name: "Image from", Type: "string", Priority: 1}, {Name: "Format from", Type: "string", Priority: 1}, {Name: "Message", Type: "string", Priority: 1},
	}}
	const between, least = 3, len("(the current image)")
	name, format, reason := len("NAME"), len("FORMAT"), len("REFUSED")
	for _, e := range machines {
		name, format, reason = max(name, len(shown(e.Name))), max(format, len(e.Format)), max(reason, len(e.Reason))
	}
	room := max(width-name-format-reason-3*between, least)
	for _, e := range machines {
		image := shownImage(e)
		if !wide {
			image = resolve.Cut(image, room)
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{shown(e.Name), image, shownOr(e.Format), shownOr(e.Reason), shownOr(string(e.ImageSource)), shownOr(string(e.FormatSource)), visible(e.Refused)}})
	}
	return table
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
			if e.Refused != "" || slices.ContainsFunc(e.Targets, func(t targetExplanation) bool { return t.Refused != "" }) {
				return errFindings
			}
		}
	}
	return nil
}
