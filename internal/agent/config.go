// Package agent reports from a host which format it was installed with.
package agent

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// Config is what an installation says of the host that it made.
type Config struct {
	// MachineName is the name of the host's Machine.
	MachineName string
	// Format is the format that the host was installed with, empty where the
	// installation does not say. Then nothing is reported: a format is never
	// inferred from the running system.
	Format v1alpha3.ProvisioningFormat
}

// formats are the values of ProvisioningFormat in an installation config,
// which has its own spelling, and what they are in the API.
var formats = map[string]v1alpha3.ProvisioningFormat{
	"cloud-init": v1alpha3.CloudInit,
	"ignition":   v1alpha3.Ignition,
}

// ReadConfig reads an installation config, JSON or YAML with keys in
// CamelCase. Keys of other software are none of its business; a value of its
// own that is wrong is an error that says what is allowed.
func ReadConfig(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return Config{}, fmt.Errorf("%s is neither JSON nor YAML: %w", path, err)
	}
	var content struct {
		MachineName        *string
		ProvisioningFormat *string
	}
	if err := json.Unmarshal(raw, &content); err != nil {
		return Config{}, fmt.Errorf("%s: MachineName and ProvisioningFormat must be strings: %w", path, err)
	}
	if content.MachineName == nil || *content.MachineName == "" {
		return Config{}, fmt.Errorf("%s: MachineName must be set to the name of this host's Machine", path)
	}
	if errs := validation.IsDNS1123Subdomain(*content.MachineName); len(errs) > 0 {
		return Config{}, fmt.Errorf("%s: MachineName %q is not the name of a Machine: %s", path, *content.MachineName, errs[0])
	}
	config := Config{MachineName: *content.MachineName}
	if content.ProvisioningFormat != nil && *content.ProvisioningFormat != "" {
		format, legal := formats[*content.ProvisioningFormat]
		if !legal {
			return Config{}, fmt.Errorf("%s: ProvisioningFormat %q is not supported: use cloud-init or ignition, or leave it out", path, *content.ProvisioningFormat)
		}
		config.Format = format
	}
	return config, nil
}
