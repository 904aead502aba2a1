package plugin

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
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
	cmd.Flags().StringVarP(output, "output", "o", "", "wide, json or yaml; a description or a table by default")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs[1:], cobra.ShellCompDirectiveNoFileComp))
}

func checkOutput(output string) error {
	if !slices.Contains(outputs, output) {
		return fmt.Errorf("-o must be wide, json or yaml, got %q", output)
	}
	return nil
}

// printAs prints a value as JSON or YAML, if -o asks for that.
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

// writer writes for people: with colours on a terminal, otherwise without.
type writer struct {
	io.Writer
	colours bool
}

// width is the number of columns that every terminal has.
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

// column is where the text of a field starts.
const column = 10

// field writes one field of a description, wrapped below its own column.
func (w writer) field(indent, name, text string, paint func(string) string) {
	w.lines(indent, name, wrap(text, width-len(indent)-column), paint)
}

// imageField writes a field that is an image, and more words about it. The image is
// never cut, since it may be copied: a long one gets a line of its own, which may
// then be too wide.
func (w writer) imageField(indent, name, image, more string, paint func(string) string) {
	room, length := width-len(indent)-column, utf8.RuneCountInString(image)
	if length <= room/2 || length+len(", ")+utf8.RuneCountInString(more) <= room {
		w.lines(indent, name, wrapWords(append([]string{image + ","}, words(more)...), room), paint)
		return
	}
	w.lines(indent, name, append([]string{image}, wrap(more, room)...), paint)
}

func (w writer) lines(indent, name string, lines []string, paint func(string) string) {
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

// wrap breaks a text between words. It escapes invisible characters.
func wrap(text string, width int) []string { return wrapWords(words(visible(text)), width) }

// words splits a text at single spaces. Longer runs of spaces are part of a value,
// such as a quoted image, and must stay.
func words(text string) []string {
	var words []string
	start := 0
	for i := 1; i < len(text)-1; i++ {
		if text[i] == ' ' && text[i-1] != ' ' && text[i+1] != ' ' {
			words, start = append(words, text[start:i]), i+1
		}
	}
	return append(words, text[start:])
}

// wrapWords puts words on lines. A word that is longer than a line stays whole, since
// it may be copied.
func wrapWords(words []string, width int) []string {
	var lines []string
	line, used := words[0], utf8.RuneCountInString(words[0])
	for _, word := range words[1:] {
		length := utf8.RuneCountInString(word)
		if used+1+length > width {
			lines, line, used = append(lines, line), word, length
			continue
		}
		line, used = line+" "+word, used+1+length
	}
	return append(lines, line)
}

// visible escapes characters that a terminal would act upon or not show. Any user may
// have written the content of objects.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// shown returns a value for output: quoted if it has invisible characters.
func shown(value string) string {
	if visible(value) == value {
		return value
	}
	return strconv.Quote(value)
}
