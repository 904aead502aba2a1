package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// versions are MachineConfigurationVersions in memory, reduced to what a
// resolution reads. It is the reader that package resolve takes: no Machine of
// a fleet costs a call.
type versions struct {
	client.Reader // nil: it has Get and List of its own
	byName        map[string]*v1alpha3.MachineConfigurationVersion
	byLabel       map[string][]*v1alpha3.MachineConfigurationVersion
	// Of what could not be read, the error is kept for who asks for it.
	brokenByName, brokenByLabel map[string]error
}

func newVersions() *versions {
	return &versions{
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

// add keeps a version. The error of one that cannot be read is returned, and
// again to whoever asks for it: nobody else's answer depends on it.
func (v *versions) add(raw []byte) error {
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
func (v *versions) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
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
// package resolve uses. One that cannot be read may be the latest, so that
// nothing is said of the others.
func (v *versions) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	label, _ := o.LabelSelector.RequiresExactMatch(v1alpha3.ConfigurationLabel)
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
