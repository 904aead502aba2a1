package resolve

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadParameters(t *testing.T) {
	for name, test := range map[string]struct {
		raw   map[string]string
		want  Parameters
		fault string
	}{
		"none":               {nil, Parameters{1, 1, false}, ""},
		"all":                {map[string]string{"maxInFlight": "5", "maxFailures": "6000", "pause": "true"}, Parameters{5, 6000, true}, ""},
		"not paused":         {map[string]string{"pause": "false"}, Parameters{1, 1, false}, ""},
		"those of others":    {map[string]string{"grace": "x"}, Parameters{1, 1, false}, ""},
		"zero":               {map[string]string{"maxInFlight": "0"}, Parameters{}, `spec.parameters.maxInFlight: "0" must be a whole number from 1 to 6000`},
		"below zero":         {map[string]string{"maxFailures": "-1"}, Parameters{}, `spec.parameters.maxFailures: "-1" must be a whole number from 1 to 6000`},
		"too many":           {map[string]string{"maxFailures": "6001"}, Parameters{}, `"6001" must be`},
		"an empty number":    {map[string]string{"maxInFlight": ""}, Parameters{}, `"" must be a whole number`},
		"a share":            {map[string]string{"maxInFlight": "10%"}, Parameters{}, `"10%" must be a whole number`},
		"with a space":       {map[string]string{"maxInFlight": " 2"}, Parameters{}, `" 2" must be a whole number`},
		"pause in other way": {map[string]string{"pause": "yes"}, Parameters{}, `spec.parameters.pause: "yes" must be "true" or "false"`},
		"an empty pause":     {map[string]string{"pause": ""}, Parameters{}, `spec.parameters.pause: "" must be "true" or "false"`},
	} {
		got, fault := ReadParameters(test.raw)
		if test.fault == "" {
			require.Empty(t, fault, name)
			require.Equal(t, test.want, got, name)
			continue
		}
		require.Equal(t, InvalidParameters, fault.Reason, name)
		require.Contains(t, fault.Message, test.fault, name)
	}
}

func TestParameterFaults(t *testing.T) {
	for name, test := range map[string]struct {
		raw   map[string]string
		keys  []string
		words string
	}{
		"none":          {nil, nil, ""},
		"all":           {map[string]string{"maxInFlight": "6000", "maxFailures": "1", "pause": "false"}, nil, ""},
		"others":        {map[string]string{"force": "?"}, nil, ""},
		"not a number":  {map[string]string{"maxInFlight": "many"}, []string{"maxInFlight"}, `spec.parameters.maxInFlight: "many" must be a whole number from 1 to 6000`},
		"too small":     {map[string]string{"maxInFlight": "0"}, []string{"maxInFlight"}, `"0" must be`},
		"too large":     {map[string]string{"maxFailures": "6001"}, []string{"maxFailures"}, `"6001" must be`},
		"not a boolean": {map[string]string{"pause": "yes"}, []string{"pause"}, `spec.parameters.pause: "yes" must be "true" or "false"`},
		"several":       {map[string]string{"pause": "", "maxFailures": "x", "maxInFlight": "x"}, []string{"maxInFlight", "maxFailures", "pause"}, "spec.parameters.maxInFlight: "},
	} {
		t.Run(name, func(t *testing.T) {
			var keys []string
			for _, fault := range ParameterFaults(test.raw) {
				keys = append(keys, fault.Key)
			}
			require.Equal(t, test.keys, keys)
			_, fault := ReadParameters(test.raw)
			require.Equal(t, test.keys != nil, fault.Found())
			require.Contains(t, fault.Message, test.words)
		})
	}
}
