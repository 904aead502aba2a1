package plugin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"

	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/versions"
)

type explainOptions struct {
	config   *genericclioptions.ConfigFlags
	streams  genericiooptions.IOStreams
	files    resource.FilenameOptions
	selector string
	all      bool
	output   string
	versions *memory
	resolver *versions.Resolver
	cluster  *cluster
	// claimNamespace is where the controller keeps claims.
	claimNamespace string
	claims         *claims // nil without a cluster
}

func newExplain(streams genericiooptions.IOStreams) *cobra.Command {
	o := &explainOptions{config: genericclioptions.NewConfigFlags(true), streams: streams}
	cmd := &cobra.Command{
		Use:   "explain (machine/NAME | machineoperation/NAME ... | -l SELECTOR | --all | -f FILE)",
		Short: "Show which image and format a HostReplace would freeze now, and why",
		Long: `Show which image and format a HostReplace would freeze for a Machine now, where
each half comes from, and whether it would be refused. For an operation, show its
frozen pairs, what its Machines say today, how they differ, and whether the
controller would fail it, or which targets. With -f, Machines and versions come
from files, and no cluster is read.

The claim on the host of a Machine says which operation may replace it. It is a
Lease in the namespace of --claim-namespace. If you may not read Leases there,
explain says so, and does not know whether another operation is in the way.

explain does not know what depends on the controller or a provider: how many
targets fit into one operation (TooManyTargets), CRDs that are too old
(SchemaTooOld), which providers the controller has, its user data
(UserDataTooLarge), and the answers of a provider.

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
	flags.StringSliceVarP(&o.files.Filenames, "filename", "f", nil, "files or folders with manifests, or - for standard input; no cluster is read")
	flags.BoolVarP(&o.files.Recursive, "recursive", "R", false, "include the subfolders of folders in -f")
	flags.StringVarP(&o.selector, "selector", "l", "", "explain the Machines with these labels")
	flags.BoolVar(&o.all, "all", false, "explain all Machines")
	flags.StringVar(&o.claimNamespace, "claim-namespace", resolve.DefaultClaimNamespace, "`namespace` of the Leases that say which operation may replace which host; the same as for the controller")
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
		return errors.New("name what to explain in exactly one way: machine/NAME, -l SELECTOR, --all or -f FILE")
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
	if faults := validation.IsDNS1123Label(o.claimNamespace); len(faults) > 0 {
		return fmt.Errorf("--claim-namespace: %q cannot be the name of a namespace: %s", o.claimNamespace, faults[0])
	}
	if o.cluster, err = connect(o.config); err != nil {
		return err
	}
	o.claims = newClaims(o.cluster, o.claimNamespace)
	o.readWith(newMemory(o.cluster))
	if len(args) > 0 {
		return o.explainNamed(ctx, named)
	}
	var found []*explanation
	var shared *sharing
	if o.all {
		shared = newSharing() // no second list is needed
	}
	if err := o.readAllVersions(ctx); err != nil {
		return err
	}
	err = o.cluster.each(ctx, "machines", o.selector, defaultChunk, func(raw []byte, _ int64) error {
		e, err := explainMachine(ctx, o.resolver, raw)
		found = append(found, e)
		if shared != nil {
			shared.add(hostOf(raw))
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := o.judgeHosts(ctx, found, shared); err != nil {
		return err
	}
	return o.print(values(found), true)
}

func (o *explainOptions) readWith(memory *memory) {
	o.versions, o.resolver = memory, versions.NewResolver(memory)
}

// readAllVersions reads all versions, where many Machines are explained.
func (o *explainOptions) readAllVersions(ctx context.Context) error {
	if o.versions.all {
		return nil
	}
	o.versions.all = true
	return o.versions.readAll(ctx, "")
}

// parseNames parses Machines and operations that are given as kind/name.
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
	var machines []*explanation
	for _, one := range named {
		e, err := o.named(ctx, one[0], one[1])
		if err != nil {
			return err
		}
		found = append(found, e)
		if machine, ok := e.(*explanation); ok {
			machines = append(machines, machine)
		}
	}
	if err := o.judgeHosts(ctx, machines, nil); err != nil {
		return err
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
		return explainMachine(ctx, o.resolver, raw)
	default:
		return o.operation(ctx, raw)
	}
}

// explainFiles explains the Machines in manifests, with the versions in them.
func (o *explainOptions) explainFiles(ctx context.Context) error {
	o.readWith(newMemory(nil))
	var machines []object
	err := manifests(o.config, o.streams.In, o.files, func(obj object, source string) error {
		if fault := obj.misspelt(); fault != "" {
			return fmt.Errorf("%s: %s", source, fault)
		}
		switch obj.Kind {
		case "Machine":
			machines = append(machines, obj)
		case "MachineConfigurationVersion":
			_ = o.versions.add(obj.raw) // the error is returned with the version
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(machines) == 0 {
		return fmt.Errorf("there is no Machine in %s", strings.Join(o.files.Filenames, ", "))
	}
	var found []*explanation
	shared := newSharing()
	for _, m := range machines {
		e, err := explainMachine(ctx, o.resolver, m.raw)
		if err != nil {
			return err
		}
		found = append(found, e)
		shared.add(hostOf(m.raw))
	}
	if err := o.judgeHosts(ctx, found, shared); err != nil {
		return err
	}
	return o.print(values(found), len(machines) > 1)
}

// print prints explanations. Several of them, and those of a selection, are a list.
func (o *explainOptions) print(found []any, list bool) error {
	if o.claims != nil && o.claims.unknown != "" {
		fmt.Fprintf(o.streams.ErrOut, "warning: it is not known which operations hold the claims on hosts, and whether one of them is in the way: %s\n", visible(o.claims.unknown))
	}
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
