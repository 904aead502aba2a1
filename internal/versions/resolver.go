package versions

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// Resolver resolves Machines with the versions that they refer to. It reads each
// version once, however many Machines refer to it: two of them never see two
// states of one version.
type Resolver struct {
	reader client.Reader
	read   map[reference]*v1alpha3.MachineConfigurationVersion
}

type reference struct {
	name    string
	pinned  bool
	version int32
}

// NewResolver returns a Resolver that reads with the reader.
func NewResolver(reader client.Reader) *Resolver {
	return &Resolver{reader, map[reference]*v1alpha3.MachineConfigurationVersion{}}
}

// Resolve returns what a Machine resolves to, and the version that it was
// resolved with; nil if none was needed. The fault says why nothing can be
// resolved. An error is a failed read.
func (r *Resolver) Resolve(ctx context.Context, machine *v1alpha3.Machine) (resolve.Result, *v1alpha3.MachineConfigurationVersion, resolve.Fault, error) {
	var version *v1alpha3.MachineConfigurationVersion
	if resolve.NeedsVersion(machine) {
		ref := *machine.Spec.ConfigurationRef
		key := reference{name: ref.Name}
		if ref.Version != nil {
			key.pinned, key.version = true, *ref.Version
		}
		if version = r.read[key]; version == nil {
			var fault resolve.Fault
			var err error
			if version, fault, err = Read(ctx, r.reader, ref); err != nil || fault.Found() {
				return resolve.Result{}, nil, fault, err
			}
			r.read[key] = version
		}
	}
	result, fault := resolve.Machine(machine, version)
	return result, version, fault, nil
}
