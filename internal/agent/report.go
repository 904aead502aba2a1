package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/strict"
)

// ErrRefused means that the API server refuses, and trying again is useless.
var ErrRefused = errors.New("the API server refuses")

// Reporter reports to one API server. It never changes a spec, and changes only one
// field of a status.
type Reporter struct {
	Client dynamic.Interface
	// DryRun only says what would be done.
	DryRun bool
	// Say is called with what was done, and with errors before each retry.
	Say func(format string, args ...any)
}

// backoff is the delay between tries.
var backoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 10, Cap: 30 * time.Second}

// Report writes the format that the config declares to the status of the Machine,
// which it creates without a spec if it does not exist. It tries again until ctx is
// done, unless the error is ErrRefused.
func (r *Reporter) Report(ctx context.Context, config Config) error {
	var last error
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := r.try(ctx, config)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, ErrRefused):
			return false, err
		}
		if ctx.Err() == nil {
			last = err
			r.Say("trying again: %v", err)
		}
		return false, nil
	})
	if err != nil && last != nil && !errors.Is(err, ErrRefused) {
		return fmt.Errorf("gave up: %w; the last error: %w", err, last)
	}
	return err
}

func (r *Reporter) try(ctx context.Context, config Config) error {
	machines := r.Client.Resource(v1alpha3.GroupVersion.WithResource("machines"))
	machine, err := machines.Get(ctx, config.MachineName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if r.DryRun {
			r.Say("would create Machine %s", config.MachineName)
			machine, err = &unstructured.Unstructured{}, nil
		} else {
			machine = &unstructured.Unstructured{}
			machine.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind("Machine"))
			machine.SetName(config.MachineName)
			if machine, err = machines.Create(ctx, machine, metav1.CreateOptions{}); err == nil {
				r.Say("created Machine %s", config.MachineName)
			} else if apierrors.IsNotFound(err) {
				return fmt.Errorf("%w: it does not serve Machines of %s; install the CRDs first", ErrRefused, v1alpha3.GroupVersion)
			}
		}
	}
	if err != nil {
		return classify(err)
	}
	if config.Format == "" {
		r.Say("the installation config declares no format: nothing is reported")
		return nil
	}
	observed, _, _ := unstructured.NestedString(machine.Object, "status", "observedProvisioningFormat")
	if observed == string(config.Format) {
		r.Say("Machine %s has %s already", config.MachineName, config.Format)
		return nil
	}
	if r.DryRun {
		r.Say("would report %s for Machine %s", config.Format, config.MachineName)
		return nil
	}
	patch := fmt.Sprintf(`{"status":{"observedProvisioningFormat":%q}}`, config.Format)
	_, err = machines.Patch(ctx, config.MachineName, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}, "status")
	if strict.SchemaTooOld(err) {
		return fmt.Errorf("%w: the CRD of Machine lacks status.observedProvisioningFormat; upgrade the CRDs first", ErrRefused)
	}
	if err != nil {
		return classify(err)
	}
	r.Say("reported %s for Machine %s", config.Format, config.MachineName)
	return nil
}

// classify returns ErrRefused for errors that stay the same. Others can pass: a
// conflict, a Machine that was just created or deleted, an outage.
func classify(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}
