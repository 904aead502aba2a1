package plugin

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// memory holds MachineConfigurationVersions, reduced to what a resolution reads. It
// is the reader that package versions takes. With a cluster, it reads the versions
// that it lacks. For the Machines of a fleet, all versions can be read up front.
type memory struct {
	client.Reader // nil: it has Get and List of its own

	cluster *cluster // nil: there is nothing else to read
	all     bool     // it holds all versions of the cluster
	listed  map[string]bool

	byName  map[string]*v1alpha3.MachineConfigurationVersion
	byLabel map[string][]*v1alpha3.MachineConfigurationVersion
	// Errors of versions that cannot be read, returned when they are requested.
	brokenByName, brokenByLabel map[string]error
}

func newMemory(c *cluster) *memory {
	return &memory{cluster: c, listed: map[string]bool{},
		byName: map[string]*v1alpha3.MachineConfigurationVersion{}, byLabel: map[string][]*v1alpha3.MachineConfigurationVersion{},
		brokenByName: map[string]error{}, brokenByLabel: map[string]error{},
	}
}

// unreadableVersion is the error for a version that a Machine refers to and that
// is not of the right shape.
type unreadableVersion struct {
	name string
	err  error
}

func (e *unreadableVersion) Error() string {
	return fmt.Sprintf("MachineConfigurationVersion %s, which it refers to, cannot be read: %v", e.name, e.err)
}

// add keeps a version. If it cannot be read, the error is returned, and again to
// everybody who asks for this version.
func (v *memory) add(raw []byte) error {
	full := &v1alpha3.MachineConfigurationVersion{}
	if err := json.Unmarshal(raw, full); err != nil {
		var known struct {
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		}
		_ = json.Unmarshal(raw, &known) // the API server sees to it that this part is right
		broken := &unreadableVersion{known.Metadata.Name, err}
		v.brokenByName[known.Metadata.Name] = broken
		v.brokenByLabel[known.Metadata.Labels[v1alpha3.ConfigurationLabel]] = broken
		return err
	}
	label := full.Labels[v1alpha3.ConfigurationLabel]
	kept := &v1alpha3.MachineConfigurationVersion{Spec: full.Spec}
	kept.Name, kept.DeletionTimestamp, kept.Labels = full.Name, full.DeletionTimestamp, map[string]string{v1alpha3.ConfigurationLabel: label}
	v.byName[kept.Name] = kept
	v.byLabel[label] = append(v.byLabel[label], kept)
	return nil
}

// Get copies the version of a name.
func (v *memory) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if v.cluster != nil && !v.all && v.byName[key.Name] == nil {
		raw, err := v.cluster.get(ctx, "machineconfigurationversions", key.Name)
		if err != nil {
			return err
		}
		_ = v.add(raw) // an error is returned below
	}
	if err := v.brokenByName[key.Name]; err != nil {
		return err
	}
	found, ok := v.byName[key.Name]
	if !ok {
		return apierrors.NewNotFound(v1alpha3.GroupVersion.WithResource("machineconfigurationversions").GroupResource(), key.Name)
	}
	found.DeepCopyInto(into.(*v1alpha3.MachineConfigurationVersion))
	return nil
}

// List copies the versions of a configuration: it knows the one selector that
// package versions uses. If one of them cannot be read, that may be the latest, and
// nothing is said of the others.
func (v *memory) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	label, _ := o.LabelSelector.RequiresExactMatch(v1alpha3.ConfigurationLabel)
	if v.cluster != nil && !v.all && !v.listed[label] {
		if err := v.readAll(ctx, o.LabelSelector.String()); err != nil {
			return err
		}
		v.listed[label] = true
	}
	if err := v.brokenByLabel[label]; err != nil {
		return err
	}
	list := into.(*v1alpha3.MachineConfigurationVersionList)
	list.Items = nil
	for _, version := range v.byLabel[label] {
		list.Items = append(list.Items, *version)
	}
	return nil
}

// readAll adds the versions of the cluster that a selector matches.
func (v *memory) readAll(ctx context.Context, selector string) error {
	return v.cluster.each(ctx, "machineconfigurationversions", selector, defaultChunk, func(raw []byte, _ int64) error {
		_ = v.add(raw) // the error is returned with the version
		return nil
	})
}
