package monitoring

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/test/local"
)

const patience, interval = time.Minute, 250 * time.Millisecond

// pictured is how long the run lasts that pictures are drawn of, in each of its
// parts.
const pictured = 40 * time.Second

// A run with warnings at first, then an outage, then denials and operations,
// as Prometheus sees it through what is in manifests/monitoring.
func TestRun(t *testing.T) {
	find(t, "prometheus")
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs etcd and kube-apiserver in the folder KUBEBUILDER_ASSETS, which make test finds or builds")
	}
	draws := os.Getenv("HOSTFORMAT_DRAW") != ""
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	webhook, controller := freeAddress(t), freeAddress(t)
	serving := []string{"--metrics-bind-address", webhook}
	cluster, err := local.Start(ctx, local.Options{Args: serving, Log: logFile(t, "the webhook")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cluster.Stop()) })
	// Every call is answered at the second try.
	start(t, "the controller", cluster.Controllers(cluster.Kubeconfig, "*", "--metrics-bind-address", controller, "--simulated-provider", "duration=1s,fail=1"))
	fleet := newFleet(t, cluster.Config)
	jobs := podMonitors(t)
	prometheus := startPrometheus(t, map[string]string{jobs[0]: webhook, jobs[1]: controller}, cluster.Config)

	// until takes rounds of writes until all queries have been above zero and,
	// for pictures, there is enough to see.
	until := func(round func(*assert.CollectT), queries ...string) {
		t.Helper()
		begun := time.Now()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			round(c)
			for _, query := range queries {
				assert.NoError(c, prometheus.rises(ctx, query))
			}
			assert.True(c, ctx.Err() != nil || !draws || time.Since(begun) > pictured, "more is to be seen")
		}, 5*patience, interval)
		require.NoError(t, ctx.Err())
	}
	restart := func(args ...string) {
		t.Helper()
		require.NoError(t, cluster.StopWebhook())
		require.ErrorContains(t, fleet.create("machines", "refused", "spec: {host: {image: ' a'}}"), "failed calling webhook")
		require.NoError(t, cluster.StartWebhook(ctx, slices.Concat(serving, args)...))
	}

	var queries, warned []string
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
			if strings.Contains(target.Expr, `outcome="warned"`) {
				warned = append(warned, target.Expr)
			}
		}
	}
	restart("--enforcement=warn")
	until(fleet.warned, warned...)
	restart()
	until(fleet.enforced, append(queries,
		`hostformat_operations{phase="Complete"}`, `hostformat_operations{phase="Failed"}`,
		`hostformat_provider_calls_total{answer="accepted"}`, `hostformat_provider_calls_total{answer="unanswered"}`)...)

	t.Run("rules", func(t *testing.T) { checkRules(t, prometheus) })
	t.Run("metrics", func(t *testing.T) { checkMetrics(t, webhook, controller) })
	if draws {
		require.NoError(t, os.MkdirAll(pictures, 0o755))
		for _, p := range panels(t) {
			require.NoError(t, p.draw(ctx, prometheus), p.Title)
		}
	}
}

// checkRules holds the alerts to what there is: Prometheus evaluates them, and
// each metric that they name was scraped.
func checkRules(t *testing.T, prometheus server) {
	health := map[string]string{}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		result, err := prometheus.Rules(t.Context(), nil)
		if !assert.NoError(c, err) {
			return
		}
		for _, group := range result.Groups {
			for _, rule := range group.Rules {
				rule := rule.(prometheusv1.AlertingRule)
				health[rule.Name] = string(rule.Health)
				assert.Equal(c, prometheusv1.RuleHealthGood, string(rule.Health), "%s: %s", rule.Name, rule.LastError)
			}
		}
	}, patience, interval)
	for _, alert := range alerts(t) {
		require.Contains(t, health, alert.Alert)
		names := metricsOf(alert.Expr)
		require.NotEmpty(t, names, alert.Expr)
		for _, name := range names {
			series, _, err := prometheus.Series(t.Context(), []string{name}, prometheus.begun, time.Now())
			require.NoError(t, err)
			require.NotEmpty(t, series, "%s uses %s", alert.Alert, name)
		}
	}
}

var (
	notMetrics = regexp.MustCompile(`\{[^}]*\}|\[[^]]*\]|\b(by|on|without|ignoring|group_left|group_right) *\([^)]*\)|\b[a-z_]+ *\(`)
	words      = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	operators  = []string{"and", "or", "unless", "bool", "offset", "by", "without"}
)

// metricsOf returns the metrics that an expression names: its words but for
// functions, labels and operators.
func metricsOf(expr string) []string {
	rest := expr
	for notMetrics.MatchString(rest) {
		rest = notMetrics.ReplaceAllString(rest, " ")
	}
	return slices.DeleteFunc(words.FindAllString(rest, -1), func(word string) bool { return slices.Contains(operators, word) })
}

func TestMetricsOf(t *testing.T) {
	for expr, want := range map[string][]string{
		`up`: {"up"},
		`sum by (name) (increase(a_total{x="y", z=~".+[.]io"}[10m])) > 2 or absent(up{job="b"} == 1)`: {"a_total", "up"},
		`min by (a) (b_seconds) - time() < 3 * 86400`:                                                 {"b_seconds"},
	} {
		require.Equal(t, want, metricsOf(expr), expr)
	}
}

// checkMetrics holds our own metrics to the conventions and to their table in
// docs/monitoring.md.
func checkMetrics(t *testing.T, addresses ...string) {
	families := map[string]*dto.MetricFamily{}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for _, address := range addresses {
		all, err := scrape(t.Context(), client, address)
		require.NoError(t, err)
		for name, family := range all {
			if _, known := families[name]; strings.HasPrefix(name, "hostformat_") && (!known || len(family.Metric) > 1) {
				families[name] = family
			}
		}
	}
	problems, err := promlint.NewWithMetricFamilies(slices.Collect(maps.Values(families))).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)

	text := read(t, docs, "monitoring.md")
	for name, family := range families {
		var labels []string
		for _, label := range family.Metric[0].Label {
			labels = append(labels, "`"+label.GetName()+"`")
		}
		slices.Sort(labels)
		row := fmt.Sprintf("\n| `%s` | %s | %s | ", name, strings.ToLower(family.GetType().String()), strings.Join(labels, ", "))
		require.Contains(t, text, strings.ReplaceAll(row, "|  |", "| |"))
	}
	require.Equal(t, len(families), strings.Count(text, "\n| `hostformat_"), "the table has none that is not there")
}

func scrape(ctx context.Context, client *http.Client, address string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(response.Body); err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(&body)
}
