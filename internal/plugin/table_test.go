package plugin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of explain fits into 80 columns with images of any length. -o wide does
// not cut them.
func TestExplainTable(t *testing.T) {
	image := strings.Repeat("registry.example.com/os/flatcar-", 4)
	manifests := head + "Machine\nmetadata: {name: rack7-node-a}\nspec: {host: {image: '" + image + "', provisioningFormat: Ignition}}\n---\n" +
		head + "Machine\nmetadata: {name: rack7-node-b}\nspec: {host: {image: img-b, provisioningFormat: CloudInit}}\n"
	stdout, _, code := in(t, manifests, "explain", "-f", "-")
	require.Equal(t, exitFindings, code)
	requireNarrow(t, stdout)
	lines := strings.Split(stdout, "\n")
	require.Equal(t, []string{"rack7-node-a", image[:25] + "...", "Ignition", "IgnitionNotDeliverable"}, strings.Fields(lines[1]))
	require.Equal(t, []string{"rack7-node-b", "img-b", "CloudInit", "-"}, strings.Fields(lines[2]))
	stdout, _, _ = in(t, manifests, "explain", "-f", "-", "-o", "wide")
	require.Contains(t, stdout, image+"   ")
	require.Contains(t, stdout, "generates cloud-init only")

	long := strings.ReplaceAll(manifests, "rack7-node-a", strings.Repeat("n", 70))
	stdout, _, _ = in(t, long, "explain", "-f", "-")
	require.Contains(t, stdout, strings.Repeat("n", 70), "a name may be copied")
	require.Contains(t, stdout, " "+image[:16]+"... ", "and something is left of the image")
}
