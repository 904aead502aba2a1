package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/internal/admission"
	"unbounded-cloud.io/hostformat/test/local"
)

// example is a file of testdata/valid or testdata/invalid. Its name is the rule
// that it shows. Its first comment says what the writer is told, and a comment
// above each document how it is written; a single document is applied.
type example struct {
	rule, text string

	stored  *unstructured.Unstructured // nil: nothing
	written *unstructured.Unstructured
	status  bool                       // written to the status subresource
	after   *unstructured.Unstructured // what is stored then; that which is written, unless it is trimmed

	refused string // by the webhook; empty: allowed
	ourCRD  string // the words where our CRD speaks first
	anyCRD  string // the words where any CRD speaks first
	warned  string
}

// What a file may say.
var (
	statements = map[string]func(*example) *string{
		"refused":            func(e *example) *string { return &e.refused },
		"refused by our CRD": func(e *example) *string { return &e.ourCRD },
		"refused by any CRD": func(e *example) *string { return &e.anyCRD },
		"warned":             func(e *example) *string { return &e.warned },
	}
	steps = map[string]func(*example, *unstructured.Unstructured){
		"":                func(e *example, u *unstructured.Unstructured) { e.written = u },
		"stored":          func(e *example, u *unstructured.Unstructured) { e.stored = u },
		"applied":         func(e *example, u *unstructured.Unstructured) { e.written = u },
		"status replaced": func(e *example, u *unstructured.Unstructured) { e.written, e.status = u, true },
		"then stored":     func(e *example, u *unstructured.Unstructured) { e.after = u },
	}
)

// The rules of examples that nothing is refused by.
var mild = []string{"inertFormat", "trim"}

// Each example does through kubectl what its first comment says, and breaks the
// rule that it is named after, or none.
func TestExamples(t *testing.T) {
	of := clusters(t)
	for direction, examples := range map[string][]example{"valid": readExamples(t, "valid"), "invalid": readExamples(t, "invalid")} {
		for _, e := range examples {
			t.Run(direction+"/"+e.rule, func(t *testing.T) {
				require.Equal(t, direction == "invalid", e.refused != "", "a file says which words it is refused with")
				t.Run("rule", func(t *testing.T) { requireVerdict(t, e) })
				for name, cluster := range of {
					t.Run(name, func(t *testing.T) { runExample(t, cluster, e) })
				}
			})
		}
	}
}

// docs/reference.md has a section for each rule, and shows its examples there as
// they are.
func TestExamplesAreShown(t *testing.T) {
	source, err := os.ReadFile("../../internal/admission/doc.go")
	require.NoError(t, err)
	var rules []string
	for _, match := range regexp.MustCompile(`(?m)^//\t(\w+) .*\.go$`).FindAllStringSubmatch(string(source), -1) {
		rules = append(rules, match[1])
	}
	require.NotEmpty(t, rules)
	page, err := os.ReadFile("../../docs/reference.md")
	require.NoError(t, err)
	sections := map[string]string{}
	for _, section := range strings.Split(string(page), "\n### ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[heading] = body
	}
	for direction, wanted := range map[string][]string{"valid": slices.Concat(rules, mild), "invalid": rules} {
		examples := readExamples(t, direction)
		var found []string
		for _, e := range examples {
			found = append(found, e.rule)
			if block := "\n```yaml\n" + e.text + "```\n"; !strings.Contains(sections[e.rule], block) {
				t.Errorf("docs/reference.md: the section %q must show testdata/%s/%s.yaml as it is:\n%s", "### "+e.rule, direction, e.rule, block)
			}
		}
		require.ElementsMatch(t, wanted, found, "one file a rule in testdata/%s", direction)
	}
}

func readExamples(t *testing.T, direction string) []example {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", direction, "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var examples []example
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		e := example{rule: strings.TrimSuffix(filepath.Base(file), ".yaml"), text: string(text)}
		require.NoError(t, e.parse(), file)
		examples = append(examples, e)
	}
	return examples
}

// parse reads the comments and documents of the file.
func (e *example) parse() error {
	text := e.text
	if comment, rest, ok := strings.Cut(text, "\n\n"); ok {
		text = rest
		var words *string
		for line := range strings.Lines(comment) {
			line = strings.TrimSpace(line)
			if more, ok := strings.CutPrefix(line, "#   "); ok && words != nil {
				*words += " " + more
				continue
			}
			name, first, _ := strings.Cut(strings.TrimPrefix(line, "# "), ": ")
			of, known := statements[name]
			if !known {
				return fmt.Errorf("%q is none of %v", name, slices.Sorted(maps.Keys(statements)))
			}
			words = of(e)
			*words = first
		}
	}
	for document := range strings.SplitSeq(text, "---\n") {
		step, rest, _ := strings.Cut(document, "\n")
		step, ok := strings.CutPrefix(step, "# ")
		if !ok {
			step, rest = "", document
		}
		set, known := steps[step]
		if !known {
			return fmt.Errorf("%q is none of %q", step, slices.Sorted(maps.Keys(steps)))
		}
		raw, err := yaml.YAMLToJSONStrict([]byte(rest))
		if err != nil {
			return err
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw); err != nil {
			return err
		}
		set(e, u)
	}
	if e.written == nil {
		return fmt.Errorf("no document is applied, and none replaces a status")
	}
	if e.after == nil {
		e.after = e.written
	}
	return nil
}

// requireVerdict requires that the example breaks its rule and no other one.
func requireVerdict(t *testing.T, e example) {
	write := admission.Write{Kind: e.written.GetKind(), Now: encode(t, e.written.Object)}
	if e.status {
		write.Subresource = "status"
	}
	if e.stored != nil {
		write.Was = encode(t, e.stored.Object)
	}
	verdict, err := admission.Judge(write)
	require.NoError(t, err)
	if e.refused == "" {
		require.Empty(t, verdict.Errors)
		return
	}
	require.Len(t, verdict.Errors, 1)
	require.Equal(t, e.rule, verdict.Errors[0].Origin)
	require.Equal(t, e.refused, verdict.Errors[0].Error())
}

func runExample(t *testing.T, cluster *local.Cluster, e example) {
	c := newClient(t, cluster)
	kind, name := e.written.GetKind(), e.written.GetName()
	a := attempt{cluster: cluster, client: c, resource: resourceOf(t, kind)}
	t.Cleanup(func() {
		err := c.of(a.resource).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	})
	var stored *unstructured.Unstructured
	if e.stored != nil {
		require.Equal(t, answer{}, a.kubectl(t, encode(t, e.stored.Object), "apply", "-f", "-"))
		writeStatus(t, c, a.resource, e.stored)
		stored = get(t, c, a.resource, name)
	}

	how, part := "apply", "spec"
	if e.status {
		how, part = "replace", "status"
		a.resource += "/status"
	}
	got := a.kubectl(t, encode(t, e.written.Object), how, "-f", "-")
	require.Equal(t, e.warned, strings.TrimSpace(got.warnings))
	if e.refused == "" {
		require.Empty(t, got.err)
		now := get(t, c, a.resource, name)
		require.Equal(t, e.after.Object[part], now.Object[part])
		require.Equal(t, e.after.GetLabels(), now.GetLabels())
		return
	}
	require.Equal(t, fmt.Sprintf("The %s %q is invalid: %s", kind, name, e.words(cluster)), got.err)
	now, err := c.of(a.resource).Get(t.Context(), name, metav1.GetOptions{})
	if stored == nil {
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		return
	}
	require.NoError(t, err)
	require.Equal(t, stored, now)
}

// words are those that the writer is refused with in a cluster.
func (e example) words(cluster *local.Cluster) string {
	switch {
	case e.anyCRD != "":
		return e.anyCRD
	case e.ourCRD != "" && ourCRDs.has(cluster):
		return e.ourCRD
	}
	return e.refused
}

func resourceOf(t *testing.T, kind string) string {
	t.Helper()
	for resource, k := range kinds {
		if k == kind {
			return resource
		}
	}
	require.Contains(t, slices.Sorted(maps.Values(kinds)), kind)
	return ""
}
