package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// outputs are what -o takes.
var outputs = []string{"", "wide", "json", "yaml"}

func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "wide, json or yaml; else for people")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs[1:], cobra.ShellCompDirectiveNoFileComp))
}

func checkOutput(output string) error {
	if !slices.Contains(outputs, output) {
		return fmt.Errorf("-o must be wide, json or yaml, got %q", output)
	}
	return nil
}

// printAs prints a value for machines, if that is what -o asks for.
func printAs(out io.Writer, output string, value any) (done bool, err error) {
	var text []byte
	switch output {
	case "json":
		text, err = json.MarshalIndent(value, "", "  ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(value)
	default:
		return false, nil
	}
	if err != nil {
		return true, err
	}
	_, err = out.Write(text)
	return true, err
}

func printTable(out io.Writer, table *metav1.Table, wide bool) error {
	return printers.NewTablePrinter(printers.PrintOptions{Wide: wide}).PrintObj(table, out)
}

// writer writes for people: in colours on a terminal, and else plainly.
type writer struct {
	io.Writer
	colours bool
}

// width is what people can be relied on to have.
const width = 80

func newWriter(out io.Writer) writer {
	return writer{out, isTerminal(out) && os.Getenv("NO_COLOR") == ""}
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (w writer) colour(code, text string) string {
	if !w.colours {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (w writer) bold(text string) string   { return w.colour("1", text) }
func (w writer) red(text string) string    { return w.colour("31", text) }
func (w writer) green(text string) string  { return w.colour("32", text) }
func (w writer) yellow(text string) string { return w.colour("33", text) }

// field writes one line of a description, wrapped below its own column.
func (w writer) field(indent, name, text string, paint func(string) string) {
	const column = 10
	lines := wrap(text, width-len(indent)-column)
	for i, line := range lines {
		if paint != nil {
			line = paint(line)
		}
		if i > 0 {
			name = ""
		}
		fmt.Fprintf(w, "%s%-*s%s\n", indent, column, name, line)
	}
}

// wrap breaks a text between words. A word that is longer than a line stays
// whole: it may be copied.
func wrap(text string, width int) []string {
	var lines []string
	line, used := &strings.Builder{}, 0
	for word := range strings.FieldsSeq(text) {
		length := utf8.RuneCountInString(word)
		switch {
		case used == 0:
		case used+1+length > width:
			lines = append(lines, line.String())
			line, used = &strings.Builder{}, 0
		default:
			line.WriteByte(' ')
			used++
		}
		line.WriteString(word)
		used += length
	}
	return append(lines, line.String())
}

func (w writer) describe(value any) {
	switch e := value.(type) {
	case *explanation:
		fmt.Fprintln(w, w.bold(e.Kind+" "+e.Name))
		w.pair("  ", e)
	case *operationExplanation:
		fmt.Fprintln(w, w.bold(e.Kind+" "+e.Name))
		w.field("  ", "phase", shownOr(e.Phase), nil)
		if len(e.Targets) == 0 {
			w.field("  ", "targets", "none yet; those that spec.machineSelector selects are frozen when it begins", nil)
		}
		for _, t := range e.Targets {
			w.target(t)
		}
	}
}

func (w writer) pair(indent string, e *explanation) {
	if e.Format != "" {
		w.field(indent, "image", shownImage(e)+", "+source(e.ImageSource, e.Version), nil)
		w.field(indent, "format", e.Format+", "+source(e.FormatSource, e.Version), nil)
	}
	if e.Refused == "" {
		w.field(indent, "refused", "no", w.green)
	} else {
		w.field(indent, "refused", e.Reason+": "+e.Refused, w.red)
	}
	if e.Note != "" {
		w.field(indent, "note", e.Note, w.yellow)
	}
}

func (w writer) target(t targetExplanation) {
	fmt.Fprintf(w, "  target %s\n", w.bold(t.Machine))
	switch {
	case t.Frozen:
		w.field("    ", "frozen", shownKept(t.Image)+", "+t.Format, nil)
	case t.Format != "":
		w.field("    ", "snapshot", shownKept(t.Image)+", "+t.Format+" as of today: it is from before the format field, and its format may still change", w.yellow)
	default:
		w.field("    ", "frozen", "not yet", nil)
	}
	if t.Refused != "" {
		w.field("    ", "refused", t.Refused, w.red)
	}
	if t.Now == nil {
		w.field("    ", "today", "the Machine does not exist", w.red)
		return
	}
	if t.Frozen && len(t.Differs) == 0 {
		w.field("    ", "today", "the Machine says the same", w.green)
		return
	}
	fmt.Fprintln(w, "    today the Machine says")
	w.pair("      ", t.Now)
	if len(t.Differs) > 0 {
		w.field("    ", "differs", strings.Join(t.Differs, ", "), w.yellow)
	}
}

// source says for people where half a pair comes from.
func source(source resolve.Source, version string) string {
	switch source {
	case resolve.FromMachine:
		return "declared in the Machine"
	case resolve.FromTemplate:
		return "from MachineConfigurationVersion " + version
	case resolve.FromObservation:
		return "as its agent observed"
	case resolve.FromFallback:
		return "as a legacy fallback: nothing is declared or observed"
	case resolve.Kept:
		return "which the host has"
	default:
		return string(source)
	}
}

func shownImage(e *explanation) string {
	if e.Format == "" {
		return "-"
	}
	return shownKept(e.Image)
}

func shownKept(image string) string {
	if image == "" {
		return "(the current image)"
	}
	return resolve.Excerpt(image)
}

func shownOr(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
