package admission

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// The paths of the two directions, as manifests/base/webhook.yaml names them.
const (
	MutatePath   = "/mutate"
	ValidatePath = "/validate"
)

// Server is the part of webhook.Server that Register needs.
type Server interface {
	Register(path string, hook http.Handler)
}

// Register serves all rules on a webhook server, at MutatePath and
// ValidatePath. Images are trimmed with every enforcement.
func Register(server Server, enforcement Enforcement) {
	server.Register(MutatePath, webhook(handler{mutate, enforcement}))
	server.Register(ValidatePath, webhook(handler{validate, enforcement}))
}

func webhook(h handler) *admission.Webhook {
	return &admission.Webhook{Handler: h, LogConstructor: logger}
}

// logger says who did what, for objects without a namespace.
func logger(base logr.Logger, req *admission.Request) logr.Logger {
	if req == nil {
		return base
	}
	return base.WithValues("kind", req.Kind.Kind, "name", req.Name, "subresource", req.SubResource,
		"operation", req.Operation, "user", req.UserInfo.Username, "dryRun", dryRun(*req), "requestUID", req.UID)
}

// guards lists every resource that has rules, by kind and subresource.
// machines/status is not among them: the report of an agent must be stored
// whatever the spec is, and the enum of the CRD guards its value.
var guards = map[metav1.GroupVersionKind]map[string]guard{
	kind("Machine"): {
		"": &guardOf[machine]{trim: machineEdits, rules: validateMachine},
	},
	kind("MachineConfiguration"): {
		"": &guardOf[configuration]{trim: configurationEdits, rules: validateConfiguration},
	},
	kind("MachineConfigurationVersion"): {
		"": &guardOf[version]{trim: versionEdits, rules: validateVersion},
	},
	kind("MachineOperation"): {
		"":       &guardOf[operation]{rules: validateOperation, needsStored: true},
		"status": &guardOf[operation]{trim: operationStatusEdits, rules: validateOperationStatus, needsStored: true},
	},
}

func kind(name string) metav1.GroupVersionKind {
	return metav1.GroupVersionKind(v1alpha3.GroupVersion.WithKind(name))
}

// handler answers reviews in one direction. It finds the rules by the kind in the
// review, whatever path it arrived at.
type handler struct {
	direction   func(guard, admission.Request, Enforcement) verdict
	enforcement Enforcement
}

// Handle answers a review. Operations other than create and update, and
// subresources without rules, are allowed. Another kind means that the webhook
// configuration is wrong, and is refused.
func (h handler) Handle(ctx context.Context, req admission.Request) admission.Response {
	subresources, guarded := guards[req.Kind]
	if !guarded {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf(
			"hostformat does not guard kind %s of %s/%s; correct the rules of the webhook configuration", req.Kind.Kind, req.Kind.Group, req.Kind.Version))
	}
	if err := ctx.Err(); err != nil {
		return admission.Errored(http.StatusServiceUnavailable, fmt.Errorf("the client closed the connection: %w", err))
	}
	g, guarded := subresources[req.SubResource]
	if !guarded || (req.Operation != admissionv1.Create && req.Operation != admissionv1.Update) {
		return admission.Allowed("")
	}
	v := h.direction(g, req, h.enforcement)
	response := v.response(req)
	v.count(req)
	if v.outcome == denied || v.outcome == warned {
		message := strings.Join(response.Warnings, "; ")
		if v.outcome == denied {
			message = response.Result.Message
		}
		logf.FromContext(ctx).Info(string(v.outcome), "rules", strings.Join(v.rules, ","), "message", message)
	}
	return response
}

// mutate returns the edits. A review that cannot be read is allowed unchanged: the
// schema, which the API server applies next, has the better message.
func mutate(g guard, req admission.Request, _ Enforcement) verdict {
	r, err := g.read(req)
	if err != nil {
		return verdict{}
	}
	return verdict{edits: r.edits()}
}

// validate returns the verdict of the rules, as far as it is enforced. A review
// that cannot be read is refused.
func validate(g guard, req admission.Request, enforcement Enforcement) verdict {
	r, err := g.read(req)
	if err != nil {
		return verdict{outcome: denied, err: err}
	}
	rules, err := r.judge()
	if err != nil {
		return verdict{outcome: denied, err: err}
	}
	return enforcement.enforce(rules)
}
