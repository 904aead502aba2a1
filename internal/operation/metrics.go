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

// All labels are bounded: sources and phases by their types, providers by what
// is registered.
var (
	resolutions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostformat_resolutions_total",
		Help: "Pairs that were frozen, by where the image and where the format came from.",
	}, []string{"image_source", "format_source"})
	providerCalls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostformat_provider_calls_total",
		Help: "Destructive calls that were made, by provider and by its answer: accepted, failed for good, or unanswered and looked up before another.",
	}, []string{"provider", "answer"})
	legacyAttempts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "hostformat_legacy_snapshot_attempts_total",
		Help: "Attempts whose format was resolved anew, since their snapshot is from before the format field.",
	})

	operationsDesc = prometheus.NewDesc("hostformat_operations",
		"HostReplace operations that are stored, by phase (none before one is set).", []string{"phase"}, nil)
	legacyDesc = prometheus.NewDesc("hostformat_legacy_snapshots",
		"Targets of HostReplace operations that are not finished and have no format in their snapshot.", nil, nil)
	oldestDesc = prometheus.NewDesc("hostformat_oldest_unfinished_operation_age_seconds",
		"How long ago the oldest HostReplace operation was created that was begun and is not finished; 0 if there is none.", nil, nil)
)

func init() { metrics.Registry.MustRegister(resolutions, providerCalls, legacyAttempts) }

// inventory counts the operations that are stored, from the cache, whenever it
// is asked.
type inventory struct{ cache client.Reader }

// Describe names the metrics that Collect makes.
func (i *inventory) Describe(ch chan<- *prometheus.Desc) {
	ch <- operationsDesc
	ch <- legacyDesc
	ch <- oldestDesc
}

// Collect counts what the cache holds. A cache that does not answer in time is a
// scrape without these.
func (i *inventory) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperationList"))
	if err := i.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	phases := map[string]int{"none": 0, string(v1alpha3.OperationPending): 0, string(v1alpha3.OperationInProgress): 0, string(v1alpha3.OperationComplete): 0, string(v1alpha3.OperationFailed): 0}
	legacy, oldest := 0, time.Duration(0)
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
	}
	for phase, count := range phases {
		ch <- prometheus.MustNewConstMetric(operationsDesc, prometheus.GaugeValue, float64(count), phase)
	}
	ch <- prometheus.MustNewConstMetric(legacyDesc, prometheus.GaugeValue, float64(legacy))
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, oldest.Seconds())
}

// items is a list of an object that is not copied; of another type it is empty.
func items(object map[string]any, fields ...string) []any {
	value, _, _ := unstructured.NestedFieldNoCopy(object, fields...)
	list, _ := value.([]any)
	return list
}

// text is a string of an object that is not copied; of another type it is empty.
func text(object map[string]any, fields ...string) string {
	value, _, _ := unstructured.NestedString(object, fields...)
	return value
}
