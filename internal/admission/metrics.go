package admission

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Values of the label rule if no rule is broken.
const (
	noRule     = "none"
	unreadable = "review" // the review itself is wrong
)

// All labels are bounded: kinds and rules by this package, the rest by their types.
// controller-runtime measures the latency already
// (controller_runtime_webhook_latency_seconds).
var (
	verdicts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostformat_admission_verdicts_total",
		Help: "Reviews, by the rule that they broke (none; review for a review that cannot be read) and by outcome (allowed, denied, warned). A review that breaks several rules counts once for each. Dry runs do not count.",
	}, []string{"kind", "subresource", "operation", "rule", "outcome"})
	trims = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostformat_admission_trimmed_images_total",
		Help: "Images that surrounding whitespace was removed from. Dry runs do not count.",
	}, []string{"kind"})
)

func init() { metrics.Registry.MustRegister(verdicts, trims) }

func dryRun(req admission.Request) bool { return req.DryRun != nil && *req.DryRun }

// count counts the verdict on a review.
func (v verdict) count(req admission.Request) {
	if dryRun(req) {
		return
	}
	if len(v.edits) > 0 {
		trims.WithLabelValues(req.Kind.Kind).Add(float64(len(v.edits)))
	}
	rules := v.rules
	switch {
	case v.outcome == "":
		return
	case v.err != nil:
		rules = []string{unreadable}
	case len(rules) == 0:
		rules = []string{noRule}
	}
	for _, rule := range rules {
		verdicts.WithLabelValues(req.Kind.Kind, req.SubResource, string(req.Operation), rule, string(v.outcome)).Inc()
	}
}
