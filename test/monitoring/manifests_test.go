// Package monitoring holds manifests/monitoring and docs/monitoring.md to what
// a real Prometheus sees of a real run, and draws the pictures from that.
package monitoring

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// Where things are, seen from the folder that go test runs this package in.
const (
	manifests = "../../manifests"
	docs      = "../../docs"
	pictures  = docs + "/pictures/monitoring"
)

func read(t *testing.T, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(text)
}

// find returns the path of a program, or skips the test.
func find(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("needs %s on PATH, which Debian has in its package prometheus: %v", program, err)
	}
	return path
}

type alert struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

// alerts are those of rules.yaml.
func alerts(t *testing.T) []alert {
	t.Helper()
	var rule struct {
		Spec struct{ Groups []struct{ Rules []alert } }
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, manifests, "monitoring", "rules.yaml")), &rule))
	require.Len(t, rule.Spec.Groups, 1)
	require.NotEmpty(t, rule.Spec.Groups[0].Rules)
	return rule.Spec.Groups[0].Rules
}

// writeRules writes the groups of rules.yaml into a folder, in the form that
// Prometheus itself reads, and returns the path of the file.
func writeRules(t *testing.T, dir string) string {
	t.Helper()
	var rule struct{ Spec map[string]any }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, manifests, "monitoring", "rules.yaml")), &rule))
	text, err := yaml.Marshal(rule.Spec)
	require.NoError(t, err)
	path := filepath.Join(dir, "rules.yaml")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

func TestRules(t *testing.T) {
	promtool := find(t, "promtool")
	dir := t.TempDir()
	rules := writeRules(t, dir)
	tests := filepath.Join(dir, "rules_test.yaml")
	require.NoError(t, os.WriteFile(tests, []byte(read(t, manifests, "monitoring", "rules_test.yaml")), 0o600))
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", rules}, {"test", "rules", tests}} {
		out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

// Each alert fires in one unit test, stays silent in another, and leads to its
// section of the runbook.
func TestAlertsAreCovered(t *testing.T) {
	var unit struct {
		Tests []struct {
			Alerts []struct {
				Name     string `json:"alertname"`
				Expected []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, manifests, "monitoring", "rules_test.yaml")), &unit))
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range unit.Tests {
		fired, tested := map[string]bool{}, map[string]bool{}
		for _, a := range test.Alerts {
			tested[a.Name] = true
			fired[a.Name] = fired[a.Name] || len(a.Expected) > 0
		}
		for name := range tested {
			if fired[name] {
				fires[name] = true
			} else {
				silent[name] = true
			}
		}
	}
	runbook, monitoring := read(t, docs, "runbook.md"), read(t, docs, "monitoring.md")
	for _, a := range alerts(t) {
		require.True(t, fires[a.Alert], "%s fires in no test", a.Alert)
		require.True(t, silent[a.Alert], "%s is silent throughout no test", a.Alert)
		anchor := "runbook#" + strings.ToLower(a.Alert)
		require.Equal(t, "https://unbounded-cloud.io/hostformat/docs/"+anchor, a.Annotations["runbook_url"])
		require.Contains(t, []string{"critical", "warning", "info"}, a.Labels["severity"])
		require.NotEmpty(t, a.Annotations["summary"], a.Alert)
		require.NotEmpty(t, a.Annotations["description"], a.Alert)
		require.Contains(t, runbook, "\n## "+a.Alert+"\n")
		require.Contains(t, monitoring, "[`"+a.Alert+"`](runbook.md#"+strings.ToLower(a.Alert)+") | "+a.Labels["severity"]+" |")
	}
}

// The runbook says what to do about each rule that the reference has.
func TestRunbookKnowsEachRule(t *testing.T) {
	_, rules, found := strings.Cut(read(t, docs, "reference.md"), "\n## Rules\n")
	require.True(t, found)
	rules, _, _ = strings.Cut(rules, "\n## ")
	_, section, found := strings.Cut(read(t, docs, "runbook.md"), "\n## HostformatDenialSurge\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	count := 0
	for line := range strings.Lines(rules) {
		if rule, heading := strings.CutPrefix(strings.TrimSpace(line), "### "); heading {
			count++
			require.Contains(t, section, "`"+rule+"`")
		}
	}
	require.Positive(t, count)
}

// podMonitors returns the name of each PodMonitor, which becomes its job.
func podMonitors(t *testing.T) []string {
	t.Helper()
	type selector struct{ MatchLabels map[string]string }
	type document struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
		Spec     struct {
			Selector  selector
			Endpoints []struct {
				Port, Scheme string
				TLSConfig    struct{ InsecureSkipVerify bool }
			} `json:"podMetricsEndpoints"`
			Template struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct {
					Containers []struct {
						Ports []struct{ Name string }
					}
				}
			}
		}
	}
	load := func(elements ...string) (documents []document) {
		for text := range strings.SplitSeq(read(t, append([]string{manifests}, elements...)...), "\n---\n") {
			var d document
			require.NoError(t, yaml.Unmarshal([]byte(text), &d))
			documents = append(documents, d)
		}
		return documents
	}
	deployments := slices.DeleteFunc(append(load("base", "deployment.yaml"), load("standalone", "controller.yaml")...),
		func(d document) bool { return d.Kind != "Deployment" })
	var jobs []string
	for i, monitor := range load("monitoring", "podmonitors.yaml") {
		require.Equal(t, "PodMonitor", monitor.Kind)
		require.Less(t, i, len(deployments))
		deployment := deployments[i]
		require.Equal(t, deployment.Metadata, monitor.Metadata)
		require.Equal(t, deployment.Spec.Template.Metadata.Labels, monitor.Spec.Selector.MatchLabels)
		require.Len(t, monitor.Spec.Endpoints, 1)
		endpoint := monitor.Spec.Endpoints[0]
		require.Equal(t, "https", endpoint.Scheme)
		require.True(t, endpoint.TLSConfig.InsecureSkipVerify)
		require.Contains(t, deployment.Spec.Template.Spec.Containers[0].Ports, struct{ Name string }{endpoint.Port})
		jobs = append(jobs, monitor.Metadata.Namespace+"/"+monitor.Metadata.Name)
	}
	require.Len(t, jobs, len(deployments), "each Deployment is scraped")
	return jobs
}

func TestPodMonitors(t *testing.T) {
	require.Equal(t, []string{"hostformat-system/hostformat-webhook", "hostformat-system/hostformat-controller"}, podMonitors(t))
}

// panel is one of dashboard.json.
type panel struct {
	Title       string
	Description string
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []target
}

type target struct{ Expr, LegendFormat string }

// picture is the name of the file that shows a panel.
func (p panel) picture() string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(p.Title), "-"), "-") + ".svg"
}

// panels are those of the dashboard, each query with what Grafana would put
// into it.
func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	require.NoError(t, json.Unmarshal([]byte(read(t, manifests, "monitoring", "dashboard.json")), &dashboard))
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for i := range p.Targets {
			p.Targets[i].Expr = strings.ReplaceAll(p.Targets[i].Expr, "$__rate_interval", rateInterval)
			require.NotContains(t, p.Targets[i].Expr, "$", p.Title)
		}
	}
	return dashboard.Panels
}

// rateInterval fits a scrape a second.
const rateInterval = "8s"

// The page shows every panel, and no picture is left of a panel that is gone.
func TestPicturesOfPanels(t *testing.T) {
	text := read(t, docs, "monitoring.md")
	var want []string
	for _, p := range panels(t) {
		require.Contains(t, text, "(pictures/"+filepath.Base(pictures)+"/"+p.picture()+")", p.Title)
		want = append(want, p.picture())
	}
	entries, err := os.ReadDir(pictures)
	require.NoError(t, err)
	var have []string
	for _, entry := range entries {
		have = append(have, entry.Name())
	}
	require.ElementsMatch(t, want, have, "make pictures draws them")
}

// Kustomize takes the folder, and the dashboard arrives as it is.
func TestOverlay(t *testing.T) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		t.Skip("needs the kubectl of KUBEBUILDER_ASSETS, which make test sets")
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(assets, "kubectl"), "kustomize", filepath.Join(manifests, "monitoring")).CombinedOutput()
	require.NoError(t, err, string(out))
	kinds := map[string]int{}
	for text := range strings.SplitSeq(string(out), "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Data map[string]string
		}
		require.NoError(t, yaml.Unmarshal([]byte(text), &object))
		kinds[object.Kind]++
		if object.Kind == "ConfigMap" {
			require.Equal(t, "hostformat-dashboard", object.Metadata.Name)
			require.Equal(t, "1", object.Metadata.Labels["grafana_dashboard"])
			require.Equal(t, read(t, manifests, "monitoring", "dashboard.json"), object.Data["dashboard.json"])
		}
	}
	require.Equal(t, map[string]int{"ConfigMap": 1, "PodMonitor": 2, "PrometheusRule": 1}, kinds)
}
