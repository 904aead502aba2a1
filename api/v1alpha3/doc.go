// Package v1alpha3 holds the part of the API group unbounded-cloud.io/v1alpha3
// that hostformat reads or writes: Machine, MachineConfiguration,
// MachineConfigurationVersion and MachineOperation.
//
// Clusters may serve these kinds from another project's CRDs, with many more
// fields. The types are therefore for reading; a program that writes must send
// a patch of its own fields, never a whole object made from these types, or it
// erases what they do not list.
//
// +kubebuilder:object:generate=true
// +groupName=unbounded-cloud.io
package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "unbounded-cloud.io", Version: "v1alpha3"}

// AddToScheme registers the kinds of this package, and their lists, with a
// scheme. It never fails.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&Machine{}, &MachineList{},
		&MachineConfiguration{}, &MachineConfigurationList{},
		&MachineConfigurationVersion{}, &MachineConfigurationVersionList{},
		&MachineOperation{}, &MachineOperationList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
