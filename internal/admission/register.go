package admission

import (
	"net/http"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// The paths of the two directions, as manifests/base/webhook.yaml names them.
const (
	MutatePath   = "/mutate"
	ValidatePath = "/validate"
)

// guards lists every resource that is guarded, by kind and subresource.
// machines/status is not among them: a report must land whatever it says of
// the spec, and the enum of the CRD guards its value.
var guards = map[metav1.GroupVersionKind]map[string]guard{
	kind("Machine"): {
		"": guardOf[machine]{trim: machineEdits, rules: validateMachine},
	},
	kind("MachineConfiguration"): {
		"": guardOf[configuration]{trim: configurationEdits, rules: validateConfiguration},
	},
	kind("MachineConfigurationVersion"): {
		"": guardOf[version]{trim: versionEdits, rules: validateVersion},
	},
	kind("MachineOperation"): {
		"":       guardOf[operation]{rules: validateOperation, needsStored: true},
		"status": guardOf[operation]{trim: operationStatusEdits, rules: validateOperationStatus, needsStored: true},
	},
}

func kind(name string) metav1.GroupVersionKind {
	return metav1.GroupVersionKind(v1alpha3.GroupVersion.WithKind(name))
}

// Server is the part of webhook.Server that Register needs.
type Server interface {
	Register(path string, hook http.Handler)
}

// Register serves all rules on a webhook server, at MutatePath and
// ValidatePath. Images are trimmed whatever the enforcement.
func Register(server Server, enforcement Enforcement) {
	server.Register(MutatePath, webhook(handler{mutate, enforcement}))
	server.Register(ValidatePath, webhook(handler{validate, enforcement}))
}

func webhook(h handler) *admission.Webhook {
	return &admission.Webhook{Handler: h, LogConstructor: logger}
}

// logger says who did what, in words that suit objects without a namespace.
func logger(base logr.Logger, req *admission.Request) logr.Logger {
	if req == nil {
		return base
	}
	return base.WithValues("kind", req.Kind.Kind, "name", req.Name, "subresource", req.SubResource,
		"operation", req.Operation, "user", req.UserInfo.Username, "dryRun", dryRun(*req), "requestUID", req.UID)
}
