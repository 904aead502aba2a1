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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
// next one. Numbers are never reused.
type Reconciler struct {
	Live     client.Reader
	Writer   client.Client
	Recorder events.EventRecorder
}

// SetupWithManager makes the manager run the reconciler for every change of a
// configuration or of one of its versions.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	byLabel := func(_ context.Context, version client.Object) []reconcile.Request {
		name := version.GetLabels()[v1alpha3.ConfigurationLabel]
		if name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(ControllerName).
		// Only we write its status: a change of it needs no reconcile.
		For(object("MachineConfiguration"), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(object("MachineConfigurationVersion"), handler.EnqueueRequestsFromMapFunc(byLabel)).
		Complete(r)
}

// Reconcile brings the newest version of one configuration up to date.
// Objects stay unstructured: a template keeps fields that we do not know.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	configuration := object("MachineConfiguration")
	if err := r.Live.Get(ctx, request.NamespacedName, configuration); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if configuration.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, nil
	}
	newest, err := r.newestVersion(ctx, configuration.GetName())
	if err != nil {
		return reconcile.Result{}, err
	}
	wanted := template(configuration)
	switch {
	case newest == nil || newest.GetDeletionTimestamp() != nil || (deployed(newest) && !reflect.DeepEqual(wanted, template(newest))):
		err = r.cut(ctx, configuration, newest, wanted)
	case !reflect.DeepEqual(wanted, template(newest)):
		err = r.update(ctx, newest, wanted)
	default:
		err = r.remember(ctx, configuration, number(newest))
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: 1}, nil // an object has changed meanwhile
	}
	return reconcile.Result{}, err
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
func (r *Reconciler) cut(ctx context.Context, configuration, newest *unstructured.Unstructured, template map[string]any) error {
	last, _, _ := unstructured.NestedInt64(configuration.Object, "status", "latestVersion")
	if newest != nil {
		last = max(last, number(newest))
	}
	if last >= math.MaxInt32 {
		message := fmt.Sprintf("version %d has the highest possible number; create another MachineConfiguration", last)
		logf.FromContext(ctx).Info("no further version", "last", last)
		r.Recorder.Eventf(configuration, nil, corev1.EventTypeWarning, string(resolve.NoFurtherVersion), "Cut", "%s", message)
		return nil
	}
	version := object("MachineConfigurationVersion")
	version.SetName(fmt.Sprintf("%s-v%d", configuration.GetName(), last+1))
	version.SetLabels(map[string]string{
		v1alpha3.ConfigurationLabel:        configuration.GetName(),
		v1alpha3.ConfigurationVersionLabel: strconv.FormatInt(last+1, 10),
	})
	version.Object["spec"] = map[string]any{"version": last + 1, "template": template}
	// A version that would be refused must not use up a number at each try.
	if err := r.Writer.Create(ctx, version.DeepCopy(), client.DryRunAll); err != nil {
		return err
	}
	if err := r.remember(ctx, configuration, last+1); err != nil {
		return err
	}
	if err := r.Writer.Create(ctx, version); err != nil {
		return err
	}
	logf.FromContext(ctx).Info("cut", "version", version.GetName())
	r.Recorder.Eventf(configuration, version, corev1.EventTypeNormal, string(resolve.VersionCut), "Cut", "created %s", version.GetName())
	return nil
}

// update replaces the template of a version that is not deployed. If it is deployed
// meanwhile, its resourceVersion changes, and nothing is written.
func (r *Reconciler) update(ctx context.Context, version *unstructured.Unstructured, template map[string]any) error {
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/resourceVersion", "value": version.GetResourceVersion()},
		{"op": "add", "path": "/spec/template", "value": template},
	})
	if err != nil {
		return err
	}
	err = r.Writer.Patch(ctx, version.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	if !apierrors.IsInvalid(err) {
		return err
	}
	// The API server answers a failed test like an invalid object: find out which.
	fresh := object("MachineConfigurationVersion")
	if getErr := r.Live.Get(ctx, client.ObjectKeyFromObject(version), fresh); getErr != nil {
		return getErr
	}
	if fresh.GetResourceVersion() != version.GetResourceVersion() {
		return apierrors.NewConflict(v1alpha3.GroupVersion.WithResource("machineconfigurationversions").GroupResource(), version.GetName(), err)
	}
	return err
}

// remember keeps the highest number in status.latestVersion.
func (r *Reconciler) remember(ctx context.Context, configuration *unstructured.Unstructured, latest int64) error {
	if last, _, _ := unstructured.NestedInt64(configuration.Object, "status", "latestVersion"); last >= latest {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"latestVersion":%d}}`, configuration.GetResourceVersion(), latest)
	return r.Writer.Status().Patch(ctx, configuration, client.RawPatch(types.MergePatchType, []byte(patch)))
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
