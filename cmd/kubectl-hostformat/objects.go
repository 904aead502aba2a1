package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// resources are the plural names of our kinds, in the order in which they are
// walked: a Machine is explained by the versions that were seen before it.
var resources = []struct {
	plural, kind string
	aliases      []string
}{
	{"machineconfigurations", "MachineConfiguration", []string{"machineconfiguration", "mc"}},
	{"machineconfigurationversions", "MachineConfigurationVersion", []string{"machineconfigurationversion", "mcv"}},
	{"machines", "Machine", []string{"machine", "mach"}},
	{"machineoperations", "MachineOperation", []string{"machineoperation", "mop"}},
}

// plural returns the resource that a word on the command line means, with or
// without its group.
func plural(word string) (string, error) {
	name, group, _ := strings.Cut(strings.ToLower(word), ".")
	if group == "" || group == v1alpha3.GroupVersion.Group {
		for _, r := range resources {
			if r.plural == name || slices.Contains(r.aliases, name) {
				return r.plural, nil
			}
		}
	}
	return "", fmt.Errorf("%q is none of machine (mach), machineconfiguration (mc), machineconfigurationversion (mcv) and machineoperation (mop)", word)
}

// object is what every kind has, and the JSON that it came from.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
	} `json:"metadata"`
	raw []byte
}

func parse(raw []byte) (object, error) {
	o := object{raw: raw}
	return o, json.Unmarshal(raw, &o)
}

func (o object) name() string {
	if o.Metadata.Name == "" && o.Metadata.GenerateName != "" {
		return o.Metadata.GenerateName + "*"
	}
	return o.Metadata.Name
}

// versions are MachineConfigurationVersions in memory, reduced to what a
// resolution reads. It is the reader that package resolve takes: no Machine of
// a fleet costs a call.
type versions struct {
	client.Reader // not implemented beyond Get and List
	byName        map[string]*v1alpha3.MachineConfigurationVersion
	byLabel       map[string][]*v1alpha3.MachineConfigurationVersion
}

func newVersions() *versions {
	return &versions{byName: map[string]*v1alpha3.MachineConfigurationVersion{}, byLabel: map[string][]*v1alpha3.MachineConfigurationVersion{}}
}

func (v *versions) add(raw []byte) error {
	full := &v1alpha3.MachineConfigurationVersion{}
	if err := json.Unmarshal(raw, full); err != nil {
		return fmt.Errorf("MachineConfigurationVersion %s cannot be read: %w", nameOf(raw), err)
	}
	label := full.Labels[v1alpha3.ConfigurationLabel]
	kept := &v1alpha3.MachineConfigurationVersion{Spec: full.Spec}
	kept.Name, kept.DeletionTimestamp, kept.Labels = full.Name, full.DeletionTimestamp, map[string]string{v1alpha3.ConfigurationLabel: label}
	v.byName[kept.Name] = kept
	v.byLabel[label] = append(v.byLabel[label], kept)
	return nil
}

// Get implements client.Reader.
func (v *versions) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	found, ok := v.byName[key.Name]
	if !ok {
		return apierrors.NewNotFound(v1alpha3.GroupVersion.WithResource("machineconfigurationversions").GroupResource(), key.Name)
	}
	found.DeepCopyInto(into.(*v1alpha3.MachineConfigurationVersion))
	return nil
}

// List implements client.Reader for the one selector that package resolve uses.
func (v *versions) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	label, _ := o.LabelSelector.RequiresExactMatch(v1alpha3.ConfigurationLabel)
	list := into.(*v1alpha3.MachineConfigurationVersionList)
	list.Items = nil
	for _, version := range v.byLabel[label] {
		list.Items = append(list.Items, *version)
	}
	return nil
}
