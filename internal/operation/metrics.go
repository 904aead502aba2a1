package operation

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// All labels are bounded: sources and phases by their types, providers by the
// registered ones.
var (
	resolutions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostformat_resolutions_total",
		Help: "Pairs that were frozen, by the sources of the image and of the format.",
	}, []string{"image_source", "format_source"})
	providerCalls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostformat_provider_calls_total",
		Help: "Destructive calls, by provider and by its answer: accepted, failed (permanently), or unanswered (looked up before the next attempt).",
	}, []string{"provider", "answer"})
	legacyAttempts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "hostformat_legacy_snapshot_attempts_total",
		Help: "Attempts whose format was resolved again, since their snapshot predates the format field.",
	})

	operationsDesc = prometheus.NewDesc("hostformat_operations",
		"Stored HostReplace operations, by phase (none if it is not set yet).", []string{"phase"}, nil)
	legacyDesc = prometheus.NewDesc("hostformat_legacy_snapshots",
		"Unfinished targets of HostReplace operations whose snapshot has no format.", nil, nil)
	oldestDesc = prometheus.NewDesc("hostformat_oldest_unfinished_operation_age_seconds",
		"Age of the oldest HostReplace operation that has started and not finished; 0 without one.", nil, nil)
	stalledDesc = prometheus.NewDesc("hostformat_operations_stalled",
		"Unfinished HostReplace operations with a target that has been held up for five minutes (condition Stalled).", nil, nil)
)

func init() { metrics.Registry.MustRegister(resolutions, providerCalls, legacyAttempts) }

// inventory counts the stored operations in the cache at each scrape.
type inventory struct{ cache client.Reader }

// Describe names the metrics that Collect makes.
func (i *inventory) Describe(ch chan<- *prometheus.Desc) {
	ch <- operationsDesc
	ch <- legacyDesc
	ch <- oldestDesc
	ch <- stalledDesc
}

// Collect counts the operations in the cache. If the cache does not answer in time,
// the scrape lacks these metrics.
func (i *inventory) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperationList"))
	if err := i.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	phases := map[string]int{"none": 0, string(v1alpha3.OperationPending): 0, string(v1alpha3.OperationInProgress): 0, string(v1alpha3.OperationComplete): 0, string(v1alpha3.OperationFailed): 0}
	legacy, stalled, oldest := 0, 0, time.Duration(0)
	for n := range list.Items {
		op := list.Items[n].Object
		if text(op, "spec", "operationKind") != string(v1alpha3.HostReplace) {
			continue
		}
		phase := text(op, "status", "phase")
		if _, known := phases[phase]; !known {
			phase = "none"
		}
		phases[phase]++
		if v1alpha3.OperationPhase(phase).Finished() || len(items(op, "status", "targets")) == 0 {
			continue
		}
		oldest = max(oldest, time.Since(list.Items[n].GetCreationTimestamp().Time))
		legacy += len(resolve.LegacyTargets(op))
		for _, item := range items(op, "status", "conditions") {
			if condition, _ := item.(map[string]any); condition["type"] == v1alpha3.ConditionStalled && condition["status"] == "True" {
				stalled++
			}
		}
	}
	for phase, count := range phases {
		ch <- prometheus.MustNewConstMetric(operationsDesc, prometheus.GaugeValue, float64(count), phase)
	}
	ch <- prometheus.MustNewConstMetric(legacyDesc, prometheus.GaugeValue, float64(legacy))
	ch <- prometheus.MustNewConstMetric(stalledDesc, prometheus.GaugeValue, float64(stalled))
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, oldest.Seconds())
}

// items returns a list of an object without a copy; nil for another type.
func items(object map[string]any, fields ...string) []any {
	value, _, _ := unstructured.NestedFieldNoCopy(object, fields...)
	list, _ := value.([]any)
	return list
}

// text returns a string of an object without a copy; empty for another type.
func text(object map[string]any, fields ...string) string {
	value, _, _ := unstructured.NestedString(object, fields...)
	return value
}
