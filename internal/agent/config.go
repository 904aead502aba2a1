// Package agent runs on a host and reports the format that the host was installed
// with.
package agent

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// Config is the installation config of a host.
type Config struct {
	// MachineName is the name of the host's Machine.
	MachineName string
	// Format is the format that the host was installed with. If it is empty, the
	// config does not declare one, and nothing is reported: a format is never
	// inferred from the running system.
	Format v1alpha3.ProvisioningFormat
}

// formats maps the values of ProvisioningFormat in an installation config, which are
// spelled differently, to those of the API.
var formats = map[string]v1alpha3.ProvisioningFormat{
	"cloud-init": v1alpha3.CloudInit,
	"ignition":   v1alpha3.Ignition,
}

// ReadConfig reads an installation config, which is JSON or YAML with keys in
// CamelCase. It ignores keys of other software. For a wrong value of its own keys,
// it returns an error that says what is allowed.
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
