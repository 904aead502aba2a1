package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

func TestReadConfig(t *testing.T) {
	for name, test := range map[string]struct {
		text   string
		format v1alpha3.ProvisioningFormat
		err    string
	}{
		"cloud-init":              {text: `{"MachineName": "worker-1", "ProvisioningFormat": "cloud-init"}`, format: v1alpha3.CloudInit},
		"ignition":                {text: "MachineName: worker-1\nProvisioningFormat: ignition\n", format: v1alpha3.Ignition},
		"omitted":                 {text: "MachineName: worker-1"},
		"null":                    {text: "MachineName: worker-1\nProvisioningFormat:\n"},
		"empty":                   {text: `{MachineName: worker-1, ProvisioningFormat: ""}`},
		"keys of others":          {text: "MachineName: worker-1\nKubernetes: {Version: v1}\nmachineName: x\nprovisioningFormat: butane\n"},
		"the spelling of the API": {text: "{MachineName: worker-1, ProvisioningFormat: Ignition}", err: `ProvisioningFormat "Ignition" is not supported: use cloud-init or ignition, or leave it out`},
		"no hyphen":               {text: "{MachineName: worker-1, ProvisioningFormat: cloudinit}", err: `"cloudinit" is not supported: use cloud-init or ignition`},
		"another format":          {text: "{MachineName: worker-1, ProvisioningFormat: butane}", err: `"butane" is not supported: use cloud-init or ignition`},
		"whitespace":              {text: "{MachineName: worker-1, ProvisioningFormat: 'ignition '}", err: `"ignition " is not supported`},
		"not a string":            {text: "{MachineName: worker-1, ProvisioningFormat: [ignition]}", err: "must be strings"},
		"no name":                 {text: "ProvisioningFormat: ignition", err: "MachineName must be set"},
		"empty name":              {text: "MachineName: ''", err: "MachineName must be set"},
		"impossible name":         {text: "MachineName: ../x", err: `MachineName "../x" is not the name of a Machine`},
		"twice the same key":      {text: "MachineName: a\nMachineName: b\n", err: "already"},
		"not YAML":                {text: "{", err: "is neither JSON nor YAML"},
		"a list":                  {text: "[]", err: "must be strings"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.json")
			require.NoError(t, os.WriteFile(path, []byte(test.text), 0o600))
			config, err := ReadConfig(path)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				require.ErrorContains(t, err, path)
				require.Zero(t, config)
				return
			}
			require.NoError(t, err)
			require.Equal(t, Config{MachineName: "worker-1", Format: test.format}, config)
		})
	}
	_, err := ReadConfig(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// For any installation config, the agent reports only known formats, and only for valid
// names of Machines.
func FuzzReadConfig(f *testing.F) {
	for _, text := range []string{"MachineName: a\nProvisioningFormat: ignition", `{"MachineName":"a","ProvisioningFormat":null}`, "MachineName: a\nmachineName: b", "a: &a [*a]", "\xff", "MachineName: [a]", "- MachineName: a"} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "config")
	f.Fuzz(func(t *testing.T, text []byte) {
		require.NoError(t, os.WriteFile(path, text, 0o600))
		config, err := ReadConfig(path)
		if err != nil {
			require.Equal(t, Config{}, config)
			return
		}
		require.Empty(t, validation.IsDNS1123Subdomain(config.MachineName))
		require.Contains(t, []v1alpha3.ProvisioningFormat{"", v1alpha3.CloudInit, v1alpha3.Ignition}, config.Format)
	})
}
