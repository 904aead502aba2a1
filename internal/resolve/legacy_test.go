package resolve

import (
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func TestLegacyTargets(t *testing.T) {
	targets := func(text string) string {
		return "{spec: {operationKind: HostReplace}, status: {phase: InProgress, targets: [" + text + "]}}"
	}
	a := []LegacyTarget{{0, "a"}}
	for name, test := range map[string]struct {
		operation string
		want      []LegacyTarget
	}{
		"no input":                {targets("{machineRef: a}"), a},
		"null input":              {targets("{machineRef: a, input: null}"), a},
		"empty input":             {targets("{machineRef: a, input: {}}"), a},
		"no format":               {targets("{machineRef: a, input: {hostImage: img-a}}"), a},
		"null format":             {targets("{machineRef: a, input: {provisioningFormat: null}}"), a},
		"empty format":            {targets("{machineRef: a, input: {provisioningFormat: ''}}"), a},
		"odd phase":               {targets("{machineRef: a, phase: 7}"), a},
		"odd machine":             {targets("{machineRef: 7}"), []LegacyTarget{{0, ""}}},
		"several":                 {targets("{machineRef: a, phase: Complete}, {machineRef: b}, {machineRef: c, input: {provisioningFormat: CloudInit}}, {machineRef: d}"), []LegacyTarget{{1, "b"}, {3, "d"}}},
		"beside an odd one":       {targets("{machineRef: b, input: {provisioningFormat: 7}}, {machineRef: a}"), []LegacyTarget{{1, "a"}}},
		"format":                  {targets("{machineRef: a, input: {provisioningFormat: Ignition}}"), nil},
		"wrong format":            {targets("{machineRef: a, input: {provisioningFormat: weird}}"), nil},
		"format of white":         {targets("{machineRef: a, input: {provisioningFormat: ' '}}"), nil},
		"odd format":              {targets("{machineRef: a, input: {provisioningFormat: 7}}"), nil},
		"odd input":               {targets("{machineRef: a, input: img-a}"), nil},
		"odd target":              {targets("a, null"), nil},
		"odd targets":             {"{spec: {operationKind: HostReplace}, status: {targets: a}}", nil},
		"odd status":              {"{spec: {operationKind: HostReplace}, status: a}", nil},
		"target complete":         {targets("{machineRef: a, phase: Complete}"), nil},
		"target failed":           {targets("{machineRef: a, phase: Failed}"), nil},
		"operation complete":      {"{spec: {operationKind: HostReplace}, status: {phase: Complete, targets: [{machineRef: a}]}}", nil},
		"another kind":            {"{spec: {operationKind: HostReboot}, status: {targets: [{machineRef: a}]}}", nil},
		"nothing":                 {"{}", nil},
		"operation with no phase": {"{spec: {operationKind: HostReplace}, status: {targets: [{machineRef: a}]}}", a},
	} {
		t.Run(name, func(t *testing.T) {
			var operation map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(test.operation), &operation))
			require.Equal(t, test.want, LegacyTargets(operation))
		})
	}
}
