package resolve

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every Reason is one constant in reasons.go, whose comment says what it means, and
// has a row in the reference. No other file spells a reason.
func TestReasonsAreDocumented(t *testing.T) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "reasons.go", nil, parser.ParseComments)
	require.NoError(t, err)
	var constants []string
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || len(spec.Values) == 0 {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		require.Equal(t, "Reason", spec.Type.(*ast.Ident).Name)
		require.Equal(t, spec.Names[0].Name, value, "a constant is named like its value")
		require.NotNil(t, spec.Comment, "%s: say in one line what it means", value)
		constants = append(constants, value)
		return true
	})
	require.Greater(t, len(constants), 30)

	page, err := os.ReadFile("../../docs/reference.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "| reason | means | do |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []string
	for line := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for _, name := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(cell, -1) {
			documented = append(documented, name[1])
		}
	}
	require.ElementsMatch(t, constants, documented)
}

// Other packages use the constants: none of them spells a reason in a string.
func TestReasonsAreSpeltOnce(t *testing.T) {
	text, err := os.ReadFile("reasons.go")
	require.NoError(t, err)
	literal := regexp.MustCompile(`Reason = ("[A-Za-z]+")`)
	for _, folder := range []string{".", "../operation", "../plugin", "../configuration", "../versions"} {
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		for _, entry := range entries {
			name := entry.Name()
			if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || name == "reasons.go" {
				continue
			}
			code, err := os.ReadFile(folder + "/" + name)
			require.NoError(t, err)
			for _, reason := range literal.FindAllStringSubmatch(string(text), -1) {
				require.NotContains(t, string(code), reason[1], "%s/%s", folder, name)
			}
		}
	}
}
