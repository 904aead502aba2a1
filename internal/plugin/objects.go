package plugin

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// resources are the plural names of our kinds, in the order in which audit reads
// them: a Machine is resolved with the versions that were read before it.
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
	return "", fmt.Errorf("unknown kind %q: use machine (mach), machineconfiguration (mc), machineconfigurationversion (mcv) or machineoperation (mop)", word)
}

// meantKind returns the kind that a word in a manifest means; empty if none.
func meantKind(word string) string {
	name, err := plural(word)
	for _, r := range resources {
		if err == nil && r.plural == name {
			return r.kind
		}
	}
	return ""
}

// object holds the fields that every kind has, and the JSON that they came from.
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

// misspelt returns what is wrong with the spelling of the kind, empty if nothing is.
// The API server accepts no other spelling.
func (o object) misspelt() string {
	if meant := meantKind(o.Kind); meant != o.Kind {
		return fmt.Sprintf("no such kind: %q; write %s", o.Kind, meant)
	}
	return ""
}

func (o object) name() string {
	if o.Metadata.Name == "" && o.Metadata.GenerateName != "" {
		return o.Metadata.GenerateName + "*"
	}
	return o.Metadata.Name
}
