package resolve

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// For any stored values, a resolution is a whole pair of legal values, or a fault that
// an edit can fix. An undeclared image never gets onto a host that runs Ignition.
func FuzzMachine(f *testing.F) {
	f.Add("img", "CloudInit", "img-t", "Ignition", "Ignition")
	f.Add(" \u00a0", "", "img-t", "", "Ignition")
	f.Add("a\u200bb", "cloud-init", "", "", "")
	f.Add(strings.Repeat("x", 2049), "", "", "IGNITION", "weird")
	f.Fuzz(func(t *testing.T, image, format, templateImage, templateFormat, observed string) {
		machine, version := machineWith(image, format, observed), versionWith(templateImage, templateFormat)
		result, fault := Machine(machine, version)
		again, faultAgain := Machine(machine, version)
		require.Equal(t, result, again)
		require.Equal(t, fault, faultAgain)
		require.Equal(t, fault.Reason == "", fault.Message == "")
		if fault.Found() {
			require.Equal(t, Result{}, result, "nothing to act on")
			return
		}
		require.NotEqual(t, InvalidPair, PairFault(result.Pair).Reason)
		require.True(t, slices.Contains(v1alpha3.ProvisioningFormats, result.Format))
		chosen := TrimImage(image)
		if chosen == "" {
			chosen = TrimImage(templateImage)
		}
		require.Equal(t, chosen, result.Image)
		if chosen != "" && observed == "Ignition" {
			require.Contains(t, []Source{FromMachine, FromTemplate}, result.FormatSource)
		}
	})
}
