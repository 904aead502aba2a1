// Package versions reads the version of a MachineConfiguration that a Machine
// refers to.
package versions

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// Read returns the one version that a reference selects: the pinned one or, without
// a pin, the one with the highest spec.version among those with the label of the
// configuration. Callers take image and format from that same object.
//
// The fault says why the reference leads to no version: nothing is ever replaced
// by a default. An error is a failed read. Reads should be live, since a cache may
// lag behind the version that was meant.
func Read(ctx context.Context, reader client.Reader, ref v1alpha3.ConfigurationReference) (*v1alpha3.MachineConfigurationVersion, resolve.Fault, error) {
	// The API server rejects such a name in a path or a selector, which would look
	// like a failed read.
	if errs := validation.IsValidLabelValue(ref.Name); len(errs) > 0 || ref.Name == "" {
		return nil, resolve.Faultf(resolve.VersionNotFound, "spec.configurationRef names %q, which cannot be the name of a MachineConfiguration with versions; correct the name", resolve.Excerpt(ref.Name)), nil
	}
	if ref.Version != nil {
		return pinnedVersion(ctx, reader, ref.Name, *ref.Version)
	}
	return latestVersion(ctx, reader, ref.Name)
}

func pinnedVersion(ctx context.Context, reader client.Reader, configuration string, number int32) (*v1alpha3.MachineConfigurationVersion, resolve.Fault, error) {
	name := fmt.Sprintf("%s-v%d", configuration, number)
	version := &v1alpha3.MachineConfigurationVersion{}
	err := reader.Get(ctx, client.ObjectKey{Name: name}, version)
	switch {
	case apierrors.IsNotFound(err):
		return nil, resolve.Faultf(resolve.VersionNotFound, "MachineConfigurationVersion %q, which spec.configurationRef pins, does not exist; create it, or pin one that exists", name), nil
	case err != nil:
		return nil, resolve.Fault{}, fmt.Errorf("reading MachineConfigurationVersion %q: %w", name, err)
	case version.DeletionTimestamp != nil:
		return nil, resolve.Faultf(resolve.VersionDeleting, "MachineConfigurationVersion %q, which spec.configurationRef pins, is being deleted; pin another version", name), nil
	case version.Labels[v1alpha3.ConfigurationLabel] != configuration:
		return nil, resolve.Faultf(resolve.VersionMismatch, "MachineConfigurationVersion %q belongs to MachineConfiguration %q by its label %s, not to %q; pin a version of %q",
			name, version.Labels[v1alpha3.ConfigurationLabel], v1alpha3.ConfigurationLabel, configuration, configuration), nil
	case version.Spec.Version != number:
		return nil, resolve.Faultf(resolve.VersionMismatch, "MachineConfigurationVersion %q has spec.version %d, not %d as its name says; pin a version whose name and number agree",
			name, version.Spec.Version, number), nil
	}
	return version, resolve.Fault{}, nil
}

func latestVersion(ctx context.Context, reader client.Reader, configuration string) (*v1alpha3.MachineConfigurationVersion, resolve.Fault, error) {
	var latest *v1alpha3.MachineConfigurationVersion
	list := &v1alpha3.MachineConfigurationVersionList{}
	for {
		err := reader.List(ctx, list, client.MatchingLabels{v1alpha3.ConfigurationLabel: configuration}, client.Continue(list.Continue))
		if err != nil {
			return nil, resolve.Fault{}, fmt.Errorf("listing the versions of MachineConfiguration %q: %w", configuration, err)
		}
		for i := range list.Items {
			version := &list.Items[i]
			if version.DeletionTimestamp == nil && (latest == nil || isLater(version, latest)) {
				latest = version.DeepCopy() // the next page reuses the list
			}
		}
		if list.Continue == "" {
			break
		}
	}
	if latest == nil {
		return nil, resolve.Faultf(resolve.VersionNotFound, "MachineConfiguration %q, which spec.configurationRef names, has no version (an object with the label %s=%s that is not being deleted); create one, or correct the name",
			configuration, v1alpha3.ConfigurationLabel, configuration), nil
	}
	return latest, resolve.Fault{}, nil
}

// isLater orders versions by number. If two have the same number by mistake,
// the name decides, so that every reader picks the same one.
func isLater(a, b *v1alpha3.MachineConfigurationVersion) bool {
	if a.Spec.Version != b.Spec.Version {
		return a.Spec.Version > b.Spec.Version
	}
	return a.Name < b.Name
}
