package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// The table of flags in docs/reference.md has the same texts as --help.
func TestFlagsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference.md")
	require.NoError(t, err)
	const head = "| flag | default | says |\n| --- | --- | --- |\n"
	_, table, found := strings.Cut(string(page), head)
	require.True(t, found, "docs/reference.md has a table that begins with\n%s", head)
	table, _, _ = strings.Cut(table, "\n\n")

	var want []string
	(&options{}).flags().VisitAll(func(flag *pflag.Flag) {
		value, says := pflag.UnquoteUsage(flag)
		initial := flag.DefValue
		if initial == "[]" {
			initial = ""
		}
		if initial != "" {
			initial = "`" + initial + "`"
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s |", strings.TrimSpace("--"+flag.Name+" "+value), initial, says))
	})
	require.Equal(t, strings.Join(want, "\n"), strings.TrimSpace(table))
}
