package admission

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// outcome is what became of a write.
type outcome string

const (
	allowed outcome = "allowed"
	denied  outcome = "denied"
	warned  outcome = "warned" // let through though it breaks a rule
)

// What stands for a rule where none is broken.
const (
	noRule     = "none"
	unreadable = "review" // the review itself is wrong
)

// All labels are bounded: kinds and rules by this package, the rest by their
// types. How long calls take is measured by controller-runtime already
// (controller_runtime_webhook_latency_seconds).
var (
	verdicts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostformat_admission_verdicts_total",
		Help: "Writes that were judged, by the rule that they broke (none; review for a review that cannot be read) and by what became of them (allowed, denied, warned). A write that breaks several rules counts once for each. Dry runs do not count.",
	}, []string{"kind", "subresource", "operation", "rule", "outcome"})
	trims = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostformat_admission_trimmed_images_total",
		Help: "Images that surrounding whitespace was removed from. Dry runs do not count.",
	}, []string{"kind"})
)

func init() { metrics.Registry.MustRegister(verdicts, trims) }

func dryRun(req admission.Request) bool { return req.DryRun != nil && *req.DryRun }

func countTrims(req admission.Request, images int) {
	if !dryRun(req) {
		trims.WithLabelValues(req.Kind.Kind).Add(float64(images))
	}
}

func countVerdict(req admission.Request, result outcome, rules ...string) {
	if dryRun(req) {
		return
	}
	for _, rule := range rules {
		verdicts.WithLabelValues(req.Kind.Kind, req.SubResource, string(req.Operation), rule, string(result)).Inc()
	}
}
