package monitoring

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"unbounded-cloud.io/hostformat/test/local"
)

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := local.FreeAddress()
	require.NoError(t, err)
	return address
}

// logFile is one whose end is shown if the test fails.
func logFile(t *testing.T, name string) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	require.NoError(t, err)
	t.Cleanup(func() {
		file.Close()
		if text, err := os.ReadFile(file.Name()); t.Failed() && err == nil {
			t.Logf("the end of what %s logged:\n%s", name, text[max(0, len(text)-8000):])
		}
	})
	return file
}

// start runs a process until the test ends.
func start(t *testing.T, name string, cmd *exec.Cmd) {
	t.Helper()
	log := logFile(t, name)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
}

// server is a Prometheus, and when it began.
type server struct {
	prometheusv1.API
	begun time.Time
}

// startPrometheus scrapes each job at its address, and the API server.
func startPrometheus(t *testing.T, jobs map[string]string, apiserver *rest.Config) server {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string][]byte{"ca.crt": apiserver.CAData, "client.crt": apiserver.CertData, "client.key": apiserver.KeyData} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	writeRules(t, dir)
	config := `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: apiserver
    scheme: https
    scrape_interval: 5s # it has much to say
    tls_config: {ca_file: ca.crt, cert_file: client.crt, key_file: client.key}
    static_configs: [{targets: [` + strings.Trim(strings.TrimPrefix(apiserver.Host, "https:"), "/") + `]}]
    metric_relabel_configs: [{source_labels: [__name__], regex: apiserver_admission_.*, action: keep}]
`
	for job, address := range jobs {
		config += fmt.Sprintf(`
  - job_name: %s
    scheme: https
    tls_config: {insecure_skip_verify: true}
    static_configs: [{targets: [%q]}]
`, job, address)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	address := freeAddress(t)
	start(t, "Prometheus", exec.Command(find(t, "prometheus"), "--config.file", file, "--web.listen-address", address,
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--log.level", "warn"))
	client, err := api.NewClient(api.Config{Address: "http://" + address})
	require.NoError(t, err)
	s := server{prometheusv1.NewAPI(client), time.Now()}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		targets, err := s.Targets(t.Context())
		if assert.NoError(c, err) {
			for _, target := range targets.Active {
				assert.Equal(c, prometheusv1.HealthGood, target.Health, "%s: %s", target.ScrapePool, target.LastError)
			}
			assert.Len(c, targets.Active, 1+len(jobs))
		}
	}, patience, interval)
	return s
}

// over evaluates a query over the whole run, as a panel does.
func (s server) over(ctx context.Context, query string) (model.Matrix, error) {
	value, _, err := s.QueryRange(ctx, query, prometheusv1.Range{Start: s.begun, End: time.Now(), Step: time.Second})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, query)
	}
	return value.(model.Matrix), nil
}

// rises reports whether a query was ever above zero.
func (s server) rises(ctx context.Context, query string) error {
	matrix, err := s.over(ctx, query)
	if err != nil {
		return err
	}
	for _, series := range matrix {
		for _, sample := range series.Values {
			if value := float64(sample.Value); value > 0 && !math.IsInf(value, 0) {
				return nil
			}
		}
	}
	return fmt.Errorf("%d series, none above zero: %s", len(matrix), query)
}
