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
		"": guardOf[machine]{edits: machineEdits, judge: validateMachine},
	},
	kind("MachineConfiguration"): {
		"": guardOf[configuration]{edits: configurationEdits, judge: validateConfiguration},
	},
	kind("MachineConfigurationVersion"): {
		"": guardOf[version]{edits: versionEdits, judge: validateVersion},
	},
	kind("MachineOperation"): {
		"":       guardOf[operation]{judge: validateOperation, needsStored: true},
		"status": guardOf[operation]{edits: operationStatusEdits, judge: validateOperationStatus, needsStored: true},
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
// ValidatePath.
func Register(server Server) {
	server.Register(MutatePath, webhook(guard.mutate))
	server.Register(ValidatePath, webhook(guard.validate))
}

func webhook(direction func(guard, admission.Request) admission.Response) *admission.Webhook {
	return &admission.Webhook{Handler: handler{direction}, LogConstructor: logger}
}

// logger says who did what, in words that suit objects without a namespace.
func logger(base logr.Logger, req *admission.Request) logr.Logger {
	if req == nil {
		return base
	}
	dryRun := req.DryRun != nil && *req.DryRun
	return base.WithValues("kind", req.Kind.Kind, "name", req.Name, "subresource", req.SubResource,
		"operation", req.Operation, "user", req.UserInfo.Username, "dryRun", dryRun, "requestUID", req.UID)
}
