package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// finding is one thing that is wrong with an object. Its JSON names are an
// interface: adding one is fine, renaming one is not.
type finding struct {
	Finding string `json:"finding"`
	Rule    string `json:"rule"`
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Field   string `json:"field"`
	Message string `json:"message"`
	Source  string `json:"source,omitempty"` // file, if it comes from one
}

// What a finding means.
const (
	findRefuse  = "refuse"  // enforcement would refuse what is stored, if it were written now
	findTrim    = "trim"    // it would trim it
	findReplace = "replace" // a HostReplace would be refused
	findWarn    = "warn"    // nothing is refused, but the result may not be what was intended
	findLegacy  = "legacy"  // an unfinished snapshot that predates the format field
	findInert   = "inert"   // a format that has no effect
	findSchema  = "schema"  // the CRD would refuse it
)

const defaultChunk = 500

type auditOptions struct {
	config   *genericclioptions.ConfigFlags
	streams  genericiooptions.IOStreams
	output   string
	chunk    int64
	progress bool
}

func newAudit(streams genericiooptions.IOStreams) *cobra.Command {
	o := &auditOptions{config: genericclioptions.NewConfigFlags(true), streams: streams}
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Report what enforcement would refuse or trim in a cluster",
		Long: `Report what enforcement would refuse or trim in a cluster. Every Machine,
MachineConfiguration, MachineConfigurationVersion and MachineOperation is read,
and judged by the rules of the webhook as if its image and format were written
now, on an object that has none. Findings are:

  refuse   the webhook would refuse it
  trim     the webhook would trim the image
  replace  a HostReplace of this Machine, or this HostReplace, would be refused,
           as explain says; claims are not checked, since they come and go
  legacy   a target, not finished, whose snapshot has no format
  inert    a format of a template that has no image beside it, and no effect

A deployed version that may not change is no finding.

Exit status: 0 clean, 1 with findings, 2 if not all could be read.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("audit reads the whole cluster and takes no %q; %s explain shows one object", args[0], cmd.Parent().CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	o.config.AddFlags(flags)
	addOutput(cmd, &o.output)
	flags.Int64Var(&o.chunk, "chunk-size", defaultChunk, "how many objects to read at once")
	flags.BoolVar(&o.progress, "progress", isTerminal(streams.ErrOut), "show how far it is, on standard error")
	return cmd
}

func (o *auditOptions) run(ctx context.Context) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	if o.chunk < 1 {
		return fmt.Errorf("--chunk-size must be at least 1, got %d", o.chunk)
	}
	c, err := connect(o.config)
	if err != nil {
		return err
	}
	out := newReport(o.streams.Out, o.output)
	progress := progress{out: o.streams.ErrOut, on: o.progress}
	reader, hosts := newAuditReader(), newSharers()
	for _, r := range resources {
		seen := 0
		err := c.each(ctx, r.plural, "", o.chunk, func(raw []byte, left int64) error {
			seen++
			findings := auditObject(ctx, r.kind, raw, reader, hosts)
			if len(findings) > 0 {
				progress.clear()
			}
			err := out.add(findings...)
			progress.show(r.plural, seen, left, out.count)
			return err
		})
		if err != nil {
			progress.clear()
			out.abandon()
			return err
		}
		out.read += seen
	}
	progress.clear()
	return out.close()
}

// progress updates one line a few times a second. Findings may go to the same
// terminal: the line is cleared before they are printed, and drawn again below
// them.
type progress struct {
	out  io.Writer
	on   bool
	last time.Time // it was drawn; zero if there is no line
}

func (p *progress) show(what string, seen int, left int64, found int) {
	if !p.on || time.Since(p.last) < 200*time.Millisecond {
		return
	}
	p.last = time.Now()
	line := fmt.Sprintf("%s: %d of %d read, %d findings", what, seen, int64(seen)+left, found)
	fmt.Fprintf(p.out, "\r%-*s", width-1, line)
}

func (p *progress) clear() {
	if p.on && !p.last.IsZero() {
		fmt.Fprintf(p.out, "\r%*s\r", width-1, "")
		p.last = time.Time{}
	}
}

// report prints findings as they come.
type report struct {
	writer
	output      string
	count, read int
	err         error
}

func newReport(out io.Writer, output string) *report {
	return &report{writer: newWriter(out), output: output}
}

func (r *report) add(findings ...finding) error {
	for _, f := range findings {
		r.count++
		switch r.output {
		case "json":
			opening := ",\n  "
			if r.count == 1 {
				opening = "[\n  "
			}
			text, err := json.Marshal(f)
			if err != nil {
				return err
			}
			r.printf("%s%s", opening, text)
		case "yaml":
			text, err := yaml.Marshal([]finding{f})
			if err != nil {
				return err
			}
			r.printf("%s", text)
		default:
			r.text(f)
		}
	}
	return r.err
}

func (r *report) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(r.Writer, format, args...); err != nil && r.err == nil {
		r.err = err
	}
}

// ruleWidth is how long the longest rule or reason is.
const ruleWidth = len(resolve.IgnitionNotDeliverable)

func (r *report) text(f finding) {
	paint := map[string]func(string) string{findRefuse: r.red, findReplace: r.red, findSchema: r.red}[f.Finding]
	if paint == nil {
		paint = r.yellow
	}
	if r.count == 1 {
		r.printf("%s\n", r.bold(fmt.Sprintf("%-8s %-*s %s", "FINDING", ruleWidth, "RULE", "OBJECT")))
	}
	r.printf("%s %-*s %s\n", paint(fmt.Sprintf("%-8s", f.Finding)), ruleWidth, f.Rule, f.Kind+"/"+shown(f.Name))
	if f.Source != "" {
		r.printf("         in %s\n", shown(f.Source))
	}
	message := f.Message
	if f.Field != "" {
		message = f.Field + ": " + message
	}
	if r.output == "wide" {
		r.printf("         %s\n", visible(message))
		return
	}
	for _, line := range wrap(message, width-9) {
		r.printf("         %s\n", line)
	}
}

// abandon ends a report that is not complete: the output stays valid.
func (r *report) abandon() {
	if r.output == "json" && r.count > 0 {
		r.printf("\n]\n")
	}
}

// close ends the report. It returns errFindings if there are any.
func (r *report) close() error {
	switch {
	case r.output == "json" && r.count == 0:
		r.printf("[]\n")
	case r.output == "json":
		r.printf("\n]\n")
	case r.output == "yaml" && r.count == 0:
		r.printf("[]\n")
	case r.output == "yaml":
	default:
		r.printf("%s, %s\n", counted(r.read, "object"), counted(r.count, "finding"))
	}
	if r.err != nil {
		return fmt.Errorf("printing: %w", r.err)
	}
	if r.count > 0 {
		return errFindings
	}
	return nil
}

func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// unreadable returns the finding for an object that does not match its type.
func unreadable(o object, err error) finding {
	return finding{Finding: findRefuse, Rule: "shape", Kind: o.Kind, Name: o.name(),
		Message: strings.TrimSuffix("cannot be read as this kind: "+err.Error(), ".") + "; correct the object"}
}
