package resolve

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// Version returns the one version that a reference selects: the pinned one, or
// else the one with the highest spec.version among those that carry the
// configuration's label. Callers take image and format from that same object.
//
// The error is an *Error where the reference cannot be followed, so that
// nothing is ever replaced by a default. Any other error is a failed read.
// Reads should be live: a cache may lag behind the version that was meant.
func Version(ctx context.Context, reader client.Reader, ref v1alpha3.ConfigurationReference) (*v1alpha3.MachineConfigurationVersion, error) {
	// The API server refuses such a name in a path or a selector, which would
	// look like a read that failed.
	if errs := validation.IsValidLabelValue(ref.Name); len(errs) > 0 || ref.Name == "" {
		return nil, errorf(VersionNotFound, "spec.configurationRef names %q, which cannot be the name of a MachineConfiguration with versions; correct the name", Excerpt(ref.Name))
	}
	if ref.Version != nil {
		return pinnedVersion(ctx, reader, ref.Name, *ref.Version)
	}
	return latestVersion(ctx, reader, ref.Name)
}

func pinnedVersion(ctx context.Context, reader client.Reader, configuration string, number int32) (*v1alpha3.MachineConfigurationVersion, error) {
	name := fmt.Sprintf("%s-v%d", configuration, number)
	version := &v1alpha3.MachineConfigurationVersion{}
	err := reader.Get(ctx, client.ObjectKey{Name: name}, version)
	switch {
	case apierrors.IsNotFound(err):
		return nil, errorf(VersionNotFound, "MachineConfigurationVersion %q, which spec.configurationRef pins, does not exist; create it, or pin one that exists", name)
	case err != nil:
		return nil, fmt.Errorf("reading MachineConfigurationVersion %q: %w", name, err)
	case version.DeletionTimestamp != nil:
		return nil, errorf(VersionDeleting, "MachineConfigurationVersion %q, which spec.configurationRef pins, is being deleted; pin another version", name)
	case version.Labels[v1alpha3.ConfigurationLabel] != configuration:
		return nil, errorf(VersionMismatch, "MachineConfigurationVersion %q belongs to MachineConfiguration %q by its label %s, not to %q; pin a version of %q",
			name, version.Labels[v1alpha3.ConfigurationLabel], v1alpha3.ConfigurationLabel, configuration, configuration)
	case version.Spec.Version != number:
		return nil, errorf(VersionMismatch, "MachineConfigurationVersion %q has spec.version %d, not %d as its name says; pin a version whose name and number agree",
			name, version.Spec.Version, number)
	}
	return version, nil
}

func latestVersion(ctx context.Context, reader client.Reader, configuration string) (*v1alpha3.MachineConfigurationVersion, error) {
	var latest *v1alpha3.MachineConfigurationVersion
	list := &v1alpha3.MachineConfigurationVersionList{}
	for {
		err := reader.List(ctx, list, client.MatchingLabels{v1alpha3.ConfigurationLabel: configuration}, client.Continue(list.Continue))
		if err != nil {
			return nil, fmt.Errorf("listing the versions of MachineConfiguration %q: %w", configuration, err)
		}
		for i := range list.Items {
			version := &list.Items[i]
			if version.DeletionTimestamp == nil && (latest == nil || later(version, latest)) {
				latest = version.DeepCopy() // the next page reuses the list
			}
		}
		if list.Continue == "" {
			break
		}
	}
	if latest == nil {
		return nil, errorf(VersionNotFound, "MachineConfiguration %q, which spec.configurationRef names, has no version (an object with the label %s=%s that is not being deleted); create one, or correct the name",
			configuration, v1alpha3.ConfigurationLabel, configuration)
	}
	return latest, nil
}

// later orders versions by number. Equal numbers are a mistake of somebody's;
// the name decides, so that every reader picks the same one.
func later(a, b *v1alpha3.MachineConfigurationVersion) bool {
	if a.Spec.Version != b.Spec.Version {
		return a.Spec.Version > b.Spec.Version
	}
	return a.Name < b.Name
}
