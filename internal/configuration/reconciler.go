// Package configuration creates MachineConfigurationVersions from
// MachineConfigurations. It is off by default, since another controller may do this
// already.
package configuration

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// ControllerName is what --controllers calls the reconciler.
const ControllerName = "machineconfiguration"

// Reconciler keeps the newest version of each configuration equal to its
// template. A version that is deployed is immutable: a change then cuts the
// next one. Numbers are never reused as long as the configuration lives. What is in
// the way of a version is said in the condition VersionCurrent and in an Event.
type Reconciler struct {
	Live     client.Reader
	Writer   client.Client
	Recorder events.EventRecorder
	Clock    clock.PassiveClock

	once sync.Once
	// changed is the wait after an object that was changed meanwhile, and blocked
	// the wait while something is in the way.
	changed, blocked workqueue.TypedRateLimiter[reconcile.Request]
	// told is what was last said of a configuration whose CRD, of another project,
	// cannot store the condition.
	told map[string]string
}

// The waits before a configuration is reconciled again. They double up to the last.
const (
	firstChangedRetry = 50 * time.Millisecond
	firstRetry        = 2 * time.Second
	lastRetry         = 5 * time.Minute
)

// SetupWithManager makes the manager run the reconciler for every change of a
// configuration or of one of its versions.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named(ControllerName).
		// Only we write its status: a change of it needs no reconcile.
		For(object("MachineConfiguration"), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(object("MachineConfigurationVersion"), handler.EnqueueRequestsFromMapFunc(configurationOf)).
		WithOptions(controller.Options{
			CacheSyncTimeout: math.MaxInt64, // a process that gave up would begin again; it is not ready meanwhile
			RateLimiter:      workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r)
}

// configurationOf returns the configuration that a version belongs to or, without the
// label, the one whose next version it may be in the way of.
func configurationOf(_ context.Context, version client.Object) []reconcile.Request {
	name := version.GetLabels()[v1alpha3.ConfigurationLabel]
	if name == "" {
		if i := strings.LastIndex(version.GetName(), "-v"); i > 0 {
			name = version.GetName()[:i]
		}
	}
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

// Reconcile brings the newest version of one configuration up to date.
// Objects stay unstructured: a template keeps fields that we do not know.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	r.once.Do(func() {
		r.changed = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstChangedRetry, lastRetry)
		r.told = map[string]string{}
		r.blocked = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
	})
	fault, err := r.reconcile(ctx, request.Name)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: r.changed.When(request)}, nil // an object has changed meanwhile
	}
	r.changed.Forget(request)
	if fault.Found() {
		return reconcile.Result{RequeueAfter: r.blocked.When(request)}, err
	}
	r.blocked.Forget(request)
	return reconcile.Result{}, err
}

// reconcile returns what is in the way of a version.
func (r *Reconciler) reconcile(ctx context.Context, name string) (resolve.Fault, error) {
	configuration := object("MachineConfiguration")
	if err := r.Live.Get(ctx, types.NamespacedName{Name: name}, configuration); err != nil {
		delete(r.told, name)
		return resolve.Fault{}, client.IgnoreNotFound(err)
	}
	if configuration.GetDeletionTimestamp() != nil {
		return resolve.Fault{}, nil
	}
	fault, latest := statusFault(configuration), int64(0)
	if !fault.Found() {
		newest, err := r.newestVersion(ctx, name)
		if err != nil {
			return resolve.Fault{}, err
		}
		wanted := template(configuration)
		switch {
		case newest == nil || newest.GetDeletionTimestamp() != nil || (deployed(newest) && !reflect.DeepEqual(wanted, template(newest))):
			if fault, err = r.cut(ctx, configuration, newest, wanted); err == nil && !fault.Found() {
				return fault, nil // the new version brings us back
			}
		case !reflect.DeepEqual(wanted, template(newest)):
			if fault, err = r.update(ctx, newest, wanted); err == nil && !fault.Found() {
				return fault, nil
			}
		default:
			latest = number(newest)
		}
		if err != nil {
			return resolve.Fault{}, err
		}
	}
	return fault, r.report(ctx, configuration, latest, fault)
}

// statusFault reports that a configuration was restored from a backup without its
// status: without the highest number that was used and without what was deployed, a
// version could get the number or the place of another one.
func statusFault(configuration *unstructured.Unstructured) resolve.Fault {
	restore := configuration.GetLabels()[v1alpha3.RestoreLabel]
	latest, _, _ := unstructured.NestedInt64(configuration.Object, "status", "latestVersion")
	if restore == "" || latest > 0 {
		return resolve.Fault{}
	}
	return resolve.Faultf(resolve.StatusLost,
		"the configuration was restored (label %s: %s) without status.latestVersion, so no version is created or changed; restore the status of the configuration and of its versions, or remove the label if it never had a version",
		v1alpha3.RestoreLabel, resolve.Excerpt(restore))
}

// newestVersion returns the version with the highest number, even if it is being
// deleted.
func (r *Reconciler) newestVersion(ctx context.Context, configuration string) (*unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineConfigurationVersionList"))
	if err := r.Live.List(ctx, list, client.MatchingLabels{v1alpha3.ConfigurationLabel: configuration}); err != nil {
		return nil, err
	}
	var newest *unstructured.Unstructured
	for i := range list.Items {
		if newest == nil || number(&list.Items[i]) > number(newest) {
			newest = &list.Items[i]
		}
	}
	return newest, nil
}

// cut creates the next version. Its number is stored first: it is never used again,
// even if the version is deleted at once.
func (r *Reconciler) cut(ctx context.Context, configuration, newest *unstructured.Unstructured, template map[string]any) (resolve.Fault, error) {
	last, _, _ := unstructured.NestedInt64(configuration.Object, "status", "latestVersion")
	if newest != nil {
		last = max(last, number(newest))
	}
	if last >= math.MaxInt32 {
		return resolve.Faultf(resolve.NoFurtherVersion, "version %d has the highest possible number; create another MachineConfiguration", last), nil
	}
	version := object("MachineConfigurationVersion")
	version.SetName(fmt.Sprintf("%s-v%d", configuration.GetName(), last+1))
	version.SetLabels(map[string]string{
		v1alpha3.ConfigurationLabel:        configuration.GetName(),
		v1alpha3.ConfigurationVersionLabel: strconv.FormatInt(last+1, 10),
	})
	version.Object["spec"] = map[string]any{"version": last + 1, "template": template}
	// A version that would be refused must not use up a number at each try.
	err := r.Writer.Create(ctx, version.DeepCopy(), client.DryRunAll)
	if apierrors.IsAlreadyExists(err) {
		return r.nameFault(ctx, configuration.GetName(), version.GetName())
	}
	if fault := refusalFault(version.GetName(), err); fault.Found() {
		return fault, nil
	}
	if err != nil {
		return resolve.Fault{}, err
	}
	if err := r.writeStatus(ctx, configuration, map[string]any{"latestVersion": last + 1}); err != nil {
		return resolve.Fault{}, err
	}
	if err := r.Writer.Create(ctx, version); err != nil {
		return resolve.Fault{}, err
	}
	logf.FromContext(ctx).Info("cut", "version", version.GetName())
	r.Recorder.Eventf(configuration, version, corev1.EventTypeNormal, string(resolve.VersionCut), "Cut", "created %s", version.GetName())
	return resolve.Fault{}, nil
}

// nameFault reports that another object has the name of the next version. If it is
// that version, another process has just created it, and the error is a conflict.
func (r *Reconciler) nameFault(ctx context.Context, configuration, name string) (resolve.Fault, error) {
	taken := object("MachineConfigurationVersion")
	err := r.Live.Get(ctx, types.NamespacedName{Name: name}, taken)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return resolve.Fault{}, err
	case err != nil || taken.GetLabels()[v1alpha3.ConfigurationLabel] == configuration:
		return resolve.Fault{}, conflict(name, err)
	}
	return resolve.Faultf(resolve.NameTaken,
		"MachineConfigurationVersion %q has the name of the next version, but not the label %s: %s; delete it, or label it if it is a version of this configuration",
		name, v1alpha3.ConfigurationLabel, configuration), nil
}

// refusalFault reports that the API server, or a webhook, does not accept a version.
func refusalFault(version string, err error) resolve.Fault {
	if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err) {
		return resolve.Fault{}
	}
	return resolve.Faultf(resolve.VersionRefused, "the API server refuses MachineConfigurationVersion %q, which is tried again later: %v", version, err)
}

func conflict(version string, err error) error {
	return apierrors.NewConflict(v1alpha3.GroupVersion.WithResource("machineconfigurationversions").GroupResource(), version, err)
}

// update replaces the template of a version that is not deployed. If it is deployed
// meanwhile, its resourceVersion changes, and nothing is written.
func (r *Reconciler) update(ctx context.Context, version *unstructured.Unstructured, template map[string]any) (resolve.Fault, error) {
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/resourceVersion", "value": version.GetResourceVersion()},
		{"op": "add", "path": "/spec/template", "value": template},
	})
	if err != nil {
		return resolve.Fault{}, err
	}
	err = r.Writer.Patch(ctx, version.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	if !apierrors.IsInvalid(err) {
		fault := refusalFault(version.GetName(), err)
		if fault.Found() {
			err = nil
		}
		return fault, err
	}
	// The API server answers a failed test like an invalid object: find out which.
	fresh := object("MachineConfigurationVersion")
	if getErr := r.Live.Get(ctx, client.ObjectKeyFromObject(version), fresh); getErr != nil {
		return resolve.Fault{}, getErr
	}
	if fresh.GetResourceVersion() != version.GetResourceVersion() {
		return resolve.Fault{}, conflict(version.GetName(), err)
	}
	return refusalFault(version.GetName(), err), nil
}

// report stores the highest number and what is in the way of a version, if anything
// is, and emits an Event when that changes.
func (r *Reconciler) report(ctx context.Context, configuration *unstructured.Unstructured, latest int64, fault resolve.Fault) error {
	status := map[string]any{}
	if last, _, _ := unstructured.NestedInt64(configuration.Object, "status", "latestVersion"); last < latest {
		status["latestVersion"] = latest
	}
	condition := metav1.Condition{
		Type: v1alpha3.ConditionVersionCurrent, Status: metav1.ConditionTrue, Reason: string(resolve.VersionCurrent),
		Message: "the newest version has this template", ObservedGeneration: configuration.GetGeneration(), LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	if fault.Found() {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, string(fault.Reason), resolve.Cut(fault.Message, 1024)
	}
	name := configuration.GetName()
	conditions, was := conditionsOf(configuration)
	told := was == "" && r.told[name] == condition.Reason+condition.Message
	if was == "" {
		was = r.told[name]
	}
	if meta.SetStatusCondition(&conditions, condition) && !told {
		status["conditions"] = conditions
	}
	if len(status) == 0 {
		return nil
	}
	if err := r.writeStatus(ctx, configuration, status); err != nil {
		return err
	}
	if _, stored := conditionsOf(configuration); stored == "" {
		r.told[name] = condition.Reason + condition.Message
	} else {
		delete(r.told, name)
	}
	if fault.Found() && !strings.HasPrefix(was, condition.Reason) {
		logf.FromContext(ctx).Info("no version", "reason", fault.Reason, "message", fault.Message)
		r.Recorder.Eventf(configuration, nil, corev1.EventTypeWarning, string(fault.Reason), "Cut", "%s", condition.Message)
	}
	return nil
}

// conditionsOf returns the stored conditions, and the reason and message of ours.
func conditionsOf(configuration *unstructured.Unstructured) (conditions []metav1.Condition, says string) {
	var stored struct {
		Status v1alpha3.MachineConfigurationStatus `json:"status"`
	}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(configuration.Object, &stored) // what Go cannot read is replaced
	if ours := meta.FindStatusCondition(stored.Status.Conditions, v1alpha3.ConditionVersionCurrent); ours != nil {
		says = ours.Reason + ours.Message
	}
	return stored.Status.Conditions, says
}

// writeStatus patches fields of the status. If the configuration has changed since it
// was read, it is a conflict.
func (r *Reconciler) writeStatus(ctx context.Context, configuration *unstructured.Unstructured, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": configuration.GetResourceVersion()},
		"status":   status,
	})
	if err != nil {
		return err
	}
	// A CRD of another project may lack the conditions, which is no reason for a warning.
	return r.Writer.Status().Patch(ctx, configuration, client.RawPatch(types.MergePatchType, patch),
		&client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}})
}

func object(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind(kind))
	return u
}

// template returns a copy of spec.template with its image trimmed, as the webhook
// stores it. A template that was stored before the webhook would otherwise never be
// equal.
func template(u *unstructured.Unstructured) map[string]any {
	content, _, _ := unstructured.NestedMap(u.Object, "spec", "template")
	if content == nil {
		content = map[string]any{}
	}
	image, found, err := unstructured.NestedString(content, "host", "image")
	if !found || err != nil {
		return content
	}
	if trimmed := resolve.TrimImage(image); trimmed != "" {
		_ = unstructured.SetNestedField(content, trimmed, "host", "image")
	} else {
		unstructured.RemoveNestedField(content, "host", "image")
	}
	return content
}

func number(version *unstructured.Unstructured) int64 {
	n, _, _ := unstructured.NestedInt64(version.Object, "spec", "version")
	return n
}

func deployed(version *unstructured.Unstructured) bool {
	d, _, _ := unstructured.NestedBool(version.Object, "status", "deployed")
	return d
}
