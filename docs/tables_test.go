package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every row of a table is one line and has as many cells as the head: a row that was
// wrapped is shown as text.
func TestTables(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	code := regexp.MustCompile("`[^`]*`")
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		fenced, cells := false, 0
		for number, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			plain := strings.TrimSpace(code.ReplaceAllString(strings.ReplaceAll(line, `\|`, ""), ""))
			if fenced || !strings.Contains(plain, "|") {
				cells = 0
				continue
			}
			require.True(t, strings.HasPrefix(plain, "|") && strings.HasSuffix(plain, "|"), "%s:%d: %s", page, number+1, line)
			if cells == 0 {
				cells = strings.Count(plain, "|")
			}
			require.Equal(t, cells, strings.Count(plain, "|"), "%s:%d: %s", page, number+1, line)
		}
	}
}
