package faults

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the process of the webhook holds, by the names of its metrics.
const (
	memory     = "process_resident_memory_bytes"
	files      = "process_open_fds"
	goroutines = "go_goroutines"
)

type sample map[string]float64

// measure asks the webhook what it holds.
func (b *testbed) measure(t testing.TB) sample {
	t.Helper()
	var s sample
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		s, err = b.scrape()
		assert.NoError(c, err)
	}, patience, interval)
	return s
}

func (b *testbed) scrape() (sample, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b.ClientConfig("/").CABundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport, Timeout: timeout}).Get("https://" + b.metrics + "/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	s := sample{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name == memory || name == files || name == goroutines {
			if s[name], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, err
			}
		}
	}
	if len(s) != 3 {
		return nil, fmt.Errorf("only %v are measured on this system", s)
	}
	return s, lines.Err()
}

// settled waits until the webhook holds no more files and goroutines than
// before, but for a few connections that the API server keeps for later.
func (b *testbed) settled(t *testing.T, before sample) {
	t.Helper()
	const spare = 2 * writersEach * 4
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		now, err := b.scrape()
		if !assert.NoError(c, err) {
			return
		}
		assert.LessOrEqual(c, now[files], before[files]+spare, files)
		assert.LessOrEqual(c, now[goroutines], before[goroutines]+2*spare, goroutines)
	}, patience, interval)
}

// TestSoak has the writers write for long, while connections are dropped and
// cut and the certificate is replaced: what the webhook holds stays flat.
func TestSoak(t *testing.T) {
	text := os.Getenv("HOSTFORMAT_SOAK")
	if text == "" {
		t.Skip("make soak runs this: it takes as long as HOSTFORMAT_SOAK says")
	}
	lasts, err := time.ParseDuration(text)
	require.NoError(t, err)
	b := newTestbed(t, nil)
	p := startProxy(t, b.Cluster)
	l := startLoad(t, b.client)
	p.bad.Store(true)
	p.closeAll()

	const samples = 200
	var taken []sample
	tick := time.NewTicker(lasts / samples)
	defer tick.Stop()
	begun := time.Now()
	for n := range samples {
		<-tick.C
		taken = append(taken, b.measure(t))
		if n%(samples/20) == 0 {
			require.NoError(t, b.RenewCertificate())
		}
	}
	p.bad.Store(false)
	l.report(t, fmt.Sprintf("soak of %s", lasts), l.healed(t, time.Now()))
	fmt.Printf("soak: %s, %d connections, of which %d were dropped and %d cut\n", time.Since(begun).Round(time.Second), p.accepted.Load(), p.dropped.Load(), p.cut.Load())
	for name, most := range map[string]float64{memory: 1.25, files: 1.25, goroutines: 1.25} {
		first, last := median(taken[:samples/4], name), median(taken[samples*3/4:], name)
		fmt.Printf("soak: %s: median %.0f in the first quarter, %.0f in the last\n", name, first, last)
		assert.LessOrEqual(t, last, first*most, name)
	}
}

func median(samples []sample, name string) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = s[name]
	}
	slices.Sort(values)
	return values[len(values)/2]
}
