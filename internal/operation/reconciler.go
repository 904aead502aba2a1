// Package operation carries out HostReplace operations: it freezes one pair of
// image and format for each target before anything destructive happens, and
// makes one destructive call a target however often things crash.
//
// Read in this order: plan.go decides what comes next, from what is recorded;
// reconciler.go sequences; start.go picks an operation up and freezes its
// pairs (freeze.go); advance.go gates, checks the pins, records an attempt and
// calls; followup.go asks what became of it; status.go is the only way to
// write a status. Everything that a destructive step depends on is read live,
// never from a cache.
package operation

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
	"unbounded-cloud.io/hostformat/internal/strict"
)

// Reconciler carries out the HostReplace operations of Machines whose provider
// is registered with it, and leaves every other operation untouched.
type Reconciler struct {
	// Live reads from the API server.
	Live client.Reader
	// Cache finds other operations by Machine; see findOther. It may lag.
	Cache client.Reader
	// Writer writes.
	Writer client.Client
	// Providers are those that this process can call, by name.
	Providers map[string]Provider
	UserData  *UserData
	Recorder  events.EventRecorder
	Clock     clock.PassiveClock
	Backoff   Backoff
	// PollInterval is how often a provider is asked how far it has come.
	PollInterval time.Duration
	// MarkDeployed marks a version as deployed before its pair is frozen. It is
	// for where our own configuration controller runs.
	MarkDeployed bool

	// picking makes one operation at a time look for others and freeze, so that
	// two for one Machine cannot both find nothing.
	picking sync.Mutex
}

// Reconcile takes an operation one step further. Every step can be repeated.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, request)
	if apierrors.IsConflict(err) {
		// Somebody else wrote meanwhile. What is to be done is decided anew.
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return result, err
}

const conflictDelay = 50 * time.Millisecond

func (r *Reconciler) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	op, err := r.read(ctx, request.Name)
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	result, err := r.sequence(ctx, op)
	if strict.SchemaTooOld(err) {
		return reconcile.Result{}, r.refuseOldSchema(ctx, op)
	}
	return result, err
}

// sequence takes the step that is due.
func (r *Reconciler) sequence(ctx context.Context, op *record) (reconcile.Result, error) {
	if op.Spec.OperationKind != v1alpha3.HostReplace || op.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	_, marked := op.Annotations[begin.StartedAnnotation]
	copied, message := begin.CopyFault(op.MachineOperation)
	switch {
	case op.Status.Phase.Finished():
		return r.expire(ctx, op)
	case copied != "":
		return reconcile.Result{}, r.refuse(ctx, op, string(copied), message)
	case len(op.Status.Targets) == 0:
		return r.start(ctx, op)
	case !r.canCall(op):
		return reconcile.Result{}, nil // another process froze it, for a provider that it has
	case !marked:
		return reconcile.Result{}, r.mark(ctx, op)
	}
	return r.advance(ctx, op)
}

// read reads an operation live.
func (r *Reconciler) read(ctx context.Context, name string) (*record, error) {
	raw := &unstructured.Unstructured{}
	raw.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("MachineOperation"))
	if err := r.Live.Get(ctx, types.NamespacedName{Name: name}, raw); err != nil {
		return nil, err
	}
	return newRecord(raw)
}

// readMachine reads a Machine live. What cannot be the name of one is not found,
// rather than asked for again and again.
func (r *Reconciler) readMachine(ctx context.Context, name string) (*v1alpha3.Machine, error) {
	if !begin.NamesMachine(name) {
		return nil, apierrors.NewNotFound(v1alpha3.GroupVersion.WithResource("machines").GroupResource(), name)
	}
	machine := &v1alpha3.Machine{}
	return machine, r.Live.Get(ctx, types.NamespacedName{Name: name}, machine)
}

// mark sets the annotation without which nothing is called. An operation whose
// pairs we did not freeze, from before the format field, is ours only if all
// its Machines have a provider that is registered.
func (r *Reconciler) mark(ctx context.Context, op *record) error {
	if !op.frozen() {
		for _, target := range op.Status.Targets {
			machine, err := r.readMachine(ctx, target.MachineRef)
			if err != nil {
				return client.IgnoreNotFound(err)
			}
			if !r.registered(machine) {
				return nil
			}
		}
	}
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{%q:%q}}}`, op.ResourceVersion, begin.StartedAnnotation, op.UID)
	return r.Writer.Patch(ctx, op.was.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
}

// canCall tells whether every provider that the targets are pinned to is
// registered in this process.
func (r *Reconciler) canCall(op *record) bool {
	for _, target := range op.Status.Targets {
		if target.Input != nil && target.Input.Provider != "" && r.Providers[target.Input.Provider] == nil {
			return false
		}
	}
	return true
}

func (r *Reconciler) registered(machine *v1alpha3.Machine) bool {
	provider, _ := resolve.Provider(machine)
	return r.Providers[provider] != nil
}

// refuse fails an operation as a whole.
func (r *Reconciler) refuse(ctx context.Context, op *record, reason, message string) error {
	now := r.Clock.Now()
	op.set(string(v1alpha3.OperationFailed), "phase")
	op.set(bounded(message), "message")
	op.set(timestamp(now), "completedAt")
	if len(op.Status.Targets) == 0 {
		op.setCondition(ConditionFrozen, metav1.ConditionFalse, reason, message, now)
	}
	op.setCondition(ConditionComplete, metav1.ConditionFalse, reason, message, now)
	if err := op.write(ctx, r.Writer); err != nil {
		if strict.SchemaTooOld(err) {
			logf.FromContext(ctx).Info("refused, and the CRD cannot even hold that", "reason", reason, "message", message)
			return nil
		}
		return err
	}
	logf.FromContext(ctx).Info("refused", "reason", reason, "message", message)
	r.event(op.was, nil, corev1.EventTypeWarning, reason, "Refuse", message)
	return nil
}

// expire deletes a finished operation of ours when its time is up.
func (r *Reconciler) expire(ctx context.Context, op *record) (reconcile.Result, error) {
	ours := false
	for _, condition := range op.Status.Conditions {
		ours = ours || condition.Type == ConditionFrozen
	}
	left, collected := expiresIn(op.MachineOperation, r.Clock.Now())
	switch {
	case !ours || !collected:
		return reconcile.Result{}, nil
	case left > 0:
		// A day at most: a clock that is set meanwhile is then noticed.
		return reconcile.Result{RequeueAfter: min(left, 24*time.Hour)}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(r.Writer.Delete(ctx, op.was,
		client.Preconditions{UID: &op.UID, ResourceVersion: &op.ResourceVersion}))
}

// event tells people, on the object that they look at.
func (r *Reconciler) event(about, related runtime.Object, kind, reason, action, message string) {
	r.Recorder.Eventf(about, related, kind, reason, action, "%s", bounded(message))
}
