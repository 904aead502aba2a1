package docs

import (
	"cmp"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/licensecheck"
	"github.com/stretchr/testify/require"
)

// Licences that shipped programs may contain. Each allows redistribution under other
// terms, together with the licence texts. MPL-2.0 and stricter licences need a decision
// before they are added here.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// The shipped programs and their platforms. The page describes the first platform.
var (
	programs  = []string{"webhook", "agent", "kubectl-hostformat"}
	platforms = []string{"linux/amd64", "darwin/arm64", "windows/amd64"}
)

var licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([-._].*)?$`)

// The module cache writes A as !a.
var upper = regexp.MustCompile("[A-Z]")

// The page has a section for every go.mod file, with a row for each direct dependency
// and no other row, and the number of modules in each program.
func TestDependenciesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("dependencies.md")
	require.NoError(t, err)
	sections := map[string]string{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		heading, rest, _ := strings.Cut(section, "\n")
		sections[heading] = rest
	}

	carriers := map[string]string{}
	counts, counted := map[string]string{}, map[string]string{}
	for _, program := range programs {
		made := modules(t, platforms[0], program)
		for module := range made {
			carriers[module] = strings.TrimPrefix(carriers[module]+", "+program, ", ")
		}
		counts[program] = strconv.Itoa(len(made))
	}
	for program, cells := range table(sections["What ships"]) {
		counted[program] = cells[0]
	}
	require.Equal(t, counts, counted, "modules of others in each program; docs/dependencies.md says the second")

	for _, file := range modFiles(t) {
		t.Run(file, func(t *testing.T) {
			heading := "`" + file + "`"
			require.Contains(t, sections, heading, "sections of docs/dependencies.md")
			rows := table(sections[heading])
			delete(sections, heading)
			direct := directDependencies(t, file)
			require.Equal(t, slices.Sorted(maps.Keys(direct)), slices.Sorted(maps.Keys(rows)), "direct dependencies; docs/dependencies.md has the second")
			for module, cells := range rows {
				if file == "go.mod" {
					require.Len(t, cells, 3, module)
					require.Equal(t, cmp.Or(carriers[module], "none"), cells[1], "the programs that carry %s", module)
				}
				require.NotEmpty(t, cells[len(cells)-1], "why %s is there", module)
				if !isFolder(direct[module]) {
					t.Logf("the licence of %s was not read: nothing needed its source on this machine", module)
					continue
				}
				require.Equal(t, strings.Join(licencesIn(t, direct[module]), ", "), cells[0], "the licence of %s", module)
			}
		})
	}
	for heading := range sections {
		require.NotContains(t, heading, ".mod", "docs/dependencies.md has a section for it, and it is gone")
	}
}

// Every third-party module in a shipped program, for any platform, has a licence text,
// and all its licences are allowed. This includes the texts in folders of a module.
func TestShippedLicences(t *testing.T) {
	folders := map[string]map[string]bool{}
	for _, platform := range platforms {
		for module, more := range modules(t, platform, programs...) {
			if folders[module] == nil {
				folders[module] = map[string]bool{}
			}
			maps.Copy(folders[module], more)
		}
	}
	for _, module := range slices.Sorted(maps.Keys(folders)) {
		found := licencesIn(t, slices.Collect(maps.Keys(folders[module]))...)
		t.Logf("%-30s %s", strings.Join(found, ", "), module)
		if len(found) == 0 {
			t.Errorf("%s has no licence text, and ships", module)
		}
		for _, licence := range found {
			if !slices.Contains(allowed, licence) {
				t.Errorf("%s is under %s, and ships; allowed are %s", module, licence, strings.Join(allowed, ", "))
			}
		}
	}
}

// Shipped programs do not link packages that only generate manifests or test:
// cert-manager's types, and everything in folder test.
func TestProgramsLinkNoTools(t *testing.T) {
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			for path := range strings.Lines(string(goCommand(t, "", "list", "-deps", "./cmd/"+program))) {
				require.NotContains(t, path, "cert-manager")
				require.NotContains(t, path, "unbounded-cloud.io/hostformat/test/")
			}
		})
	}
}

// table reads the rows whose first cell is code. It maps that cell to the others.
func table(section string) map[string][]string {
	rows := map[string][]string{}
	for line := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if name := strings.Trim(cells[0], "`"); strings.HasPrefix(line, "| `") {
			rows[name] = cells[1:]
		}
	}
	return rows
}

// modFiles finds go.mod, go.tools.mod and the go.mod files of nested modules.
func modFiles(t *testing.T) []string {
	var files []string
	require.NoError(t, fs.WalkDir(os.DirFS(".."), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist") {
			return fs.SkipDir
		}
		if !entry.IsDir() && filepath.Ext(path) == ".mod" {
			files = append(files, path)
		}
		return nil
	}))
	return files
}

// directDependencies returns the modules that our code imports and those of our tools,
// each with the folder of its source on this machine, if it was downloaded. Folders of
// this repository are not included.
func directDependencies(t *testing.T, file string) map[string]string {
	var mod struct {
		Require []struct {
			Path, Version string
			Indirect      bool
		}
		Replace []struct{ Old, New struct{ Path string } }
		Tool    []struct{ Path string }
	}
	require.NoError(t, json.Unmarshal(goCommand(t, "", "mod", "edit", "-json", file), &mod))
	tools := map[string]bool{}
	for _, tool := range mod.Tool {
		module := "" // the longest path that fits
		for _, need := range mod.Require {
			if strings.HasPrefix(tool.Path+"/", need.Path+"/") && len(need.Path) > len(module) {
				module = need.Path
			}
		}
		tools[module] = true
	}
	cache := strings.TrimSpace(string(goCommand(t, "", "env", "GOMODCACHE")))
	direct := map[string]string{}
	for _, need := range mod.Require {
		if !need.Indirect || tools[need.Path] {
			escaped := upper.ReplaceAllStringFunc(need.Path+"@"+need.Version, func(letter string) string { return "!" + strings.ToLower(letter) })
			direct[need.Path] = filepath.Join(cache, escaped)
		}
	}
	for _, replaced := range mod.Replace {
		if strings.HasPrefix(replaced.New.Path, ".") {
			delete(direct, replaced.Old.Path)
		}
	}
	return direct
}

// modules returns the third-party modules in the programs for a platform, each with the
// folders of its packages and their parent folders.
func modules(t *testing.T, platform string, programs ...string) map[string]map[string]bool {
	const format = "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}"
	args := []string{"list", "-deps", "-f", format}
	for _, program := range programs {
		args = append(args, "./cmd/"+program)
	}
	found := map[string]map[string]bool{}
	for line := range strings.Lines(string(goCommand(t, platform, args...))) {
		cells := strings.Split(strings.TrimSpace(line), "\t")
		require.Len(t, cells, 3)
		module, root, folder := cells[0], cells[1], cells[2]
		if found[module] == nil {
			found[module] = map[string]bool{root: true}
		}
		for ; len(folder) > len(root); folder = filepath.Dir(folder) {
			found[module][folder] = true
		}
	}
	require.NotEmpty(t, found)
	return found
}

// licencesIn names the licences of the texts in folders. A text that is mostly something
// else counts as unknown.
func licencesIn(t *testing.T, folders ...string) []string {
	found := map[string]bool{}
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		for _, entry := range entries {
			if !entry.Type().IsRegular() || filepath.Ext(entry.Name()) == ".go" || !licenceName.MatchString(entry.Name()) {
				continue
			}
			path := filepath.Join(folder, entry.Name())
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			coverage := licensecheck.Scan(text)
			if coverage.Percent < 75 {
				found["what nobody knows ("+path+")"] = true
			}
			for _, match := range coverage.Match {
				if !match.IsURL {
					found[match.ID] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// goCommand runs go in the root of the repository, for a platform unless it is empty.
func goCommand(t *testing.T, platform string, args ...string) []byte {
	command := exec.CommandContext(t.Context(), "go", args...)
	command.Dir = ".."
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if system, architecture, found := strings.Cut(platform, "/"); found {
		command.Env = append(command.Env, "GOOS="+system, "GOARCH="+architecture)
	}
	var says strings.Builder
	command.Stderr = &says
	output, err := command.Output()
	require.NoError(t, err, "go %s: %s", strings.Join(args, " "), &says)
	return output
}
