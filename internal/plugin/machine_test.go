package plugin

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Machine that explain refuses is a finding of audit, with the same reason.
func TestAuditAgreesWithExplain(t *testing.T) {
	for name, test := range map[string]struct{ manifests, reason, words string }{
		"fine":               {"Machine\nmetadata: {name: a}\nspec: {host: {image: img-a, provisioningFormat: CloudInit}}", "", ""},
		"going":              {"Machine\nmetadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z'}\nspec: {host: {image: img-a, provisioningFormat: CloudInit}}", "MachineDeleting", "the Machine is being deleted"},
		"not deliverable":    {"Machine\nmetadata: {name: a}\nspec: {host: {image: img-a, provisioningFormat: Ignition}}", "IgnitionNotDeliverable", "generates cloud-init only"},
		"undeclared":         {"Machine\nmetadata: {name: a}\nspec: {host: {image: img-a}}\nstatus: {observedProvisioningFormat: Ignition}", "FormatNotDeclared", "must be declared"},
		"unreadable":         {"Machine\nmetadata: {name: a}\nstatus: {observedProvisioningFormat: 7}", "Unreadable", "the Machine cannot be read"},
		"no version":         {"Machine\nmetadata: {name: a}\nspec: {configurationRef: {name: web}}", "VersionNotFound", "has no version"},
		"unreadable pinned":  {brokenVersion + "Machine\nmetadata: {name: a}\nspec: {configurationRef: {name: web, version: 3}}", "Unreadable", "MachineConfigurationVersion web-v3, which it refers to, cannot be read"},
		"unreadable latest":  {brokenVersion + "Machine\nmetadata: {name: a}\nspec: {configurationRef: {name: web}}", "Unreadable", "MachineConfigurationVersion web-v3, which it refers to, cannot be read"},
		"unreadable, unused": {brokenVersion + "Machine\nmetadata: {name: a}\nspec: {configurationRef: {name: web}, host: {image: img-a}}", "", ""},
		"unreadable, other":  {brokenVersion + "Machine\nmetadata: {name: a}\nspec: {configurationRef: {name: db}}", "VersionNotFound", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newStub(t, head+test.manifests)
			stdout, stderr, code := cluster.of(t, "explain", "machine/a", "-o", "json")
			require.Empty(t, stderr)
			require.Equal(t, test.reason != "", code == exitFindings, code)
			var e explanation
			require.NoError(t, json.Unmarshal([]byte(stdout), &e))
			require.EqualValues(t, test.reason, e.Reason)
			require.Contains(t, e.Refused, test.words)

			stdout, _, _ = cluster.of(t, "audit", "-o", "json")
			var findings []finding
			require.NoError(t, json.Unmarshal([]byte(stdout), &findings))
			reason, message := "", ""
			for _, f := range findings {
				if f.Finding == findReplace {
					require.Empty(t, reason, "one at most")
					reason, message = f.Rule, f.Message
				}
			}
			require.Equal(t, test.reason, reason)
			require.Equal(t, e.Refused, message)
		})
	}
}

const brokenVersion = "MachineConfigurationVersion\nmetadata: {name: web-v3, labels: {unbounded-cloud.io/machine-configuration: web}}\nspec: {version: three}\n---\n" + head
