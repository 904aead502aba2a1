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
