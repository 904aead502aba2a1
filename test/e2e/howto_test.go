package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/test/local"
)

// The commands of docs/howto.md print what it shows, and its overlay can be built.
func TestHowto(t *testing.T) {
	needsLocal(t)
	t.Parallel() // or each part would hold up the tests that follow
	withEachKubectl(t, howto)
}

func howto(t *testing.T, path string) {
	cluster, c := emptyCluster(t)
	startControllers(t, cluster, cluster.Kubeconfig, "*,machineconfiguration")

	// The fleet that the page assumes.
	external := func(bay string) string { return "external: {provider: Simulated, providerID: " + bay + "}" }
	of := func(more string) string {
		return "metadata: {labels: {example.com/rack: '3'}}\nspec: {" + more + "}\n" + ignition
	}
	store(t, c, "machineconfigurations", object(t, "machineconfigurations", "rack3", "spec: {template: {host: {image: flatcar-4230, provisioningFormat: Ignition}}}"))
	for name, text := range map[string]string{
		"worker-1": "spec: {host: {image: flatcar-4230, provisioningFormat: Ignition, " + external("bay-1") + "}}\n" + ignition,
		"worker-2": of("configurationRef: {name: rack3}, host: {" + external("bay-2") + "}"),
		"worker-3": of("configurationRef: {name: rack3, version: 1}, host: {" + external("bay-3") + "}"),
		"worker-4": "spec: {host: {image: flatcar-4230, " + external("bay-4") + "}}\n" + ignition, // reported after the image was set
	} {
		store(t, c, "machines", object(t, "machines", name, text))
	}
	out, err := cluster.Kubectl(t.Context(), nil, "wait", "mcv/rack3-v1", "--for=create", "--timeout=30s")
	require.NoError(t, err, out)
	writeStatus(t, c, "machineconfigurationversions", object(t, "machineconfigurationversions", "rack3-v1", "status: {deployed: true}"))
	dir := t.TempDir()
	require.NoError(t, os.Symlink(cluster.Root, filepath.Join(dir, "hostformat")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "manifests"), 0o755))
	manifest, err := os.ReadFile("testdata/invalid/fleetSelector.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifests", "replace-all.yaml"), manifest, 0o600))

	ran := runPage(t, cluster, "howto.md", dir, path, func(kustomization string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600))
		rendered, err := cluster.Kubectl(t.Context(), nil, "kustomize", dir)
		require.NoError(t, err, rendered)
		require.Contains(t, rendered, "- --enforcement=warn\n")
		require.Contains(t, rendered, "image: registry.example.com/hostformat:v1.2.3\n")
	}, nil)
	require.Equal(t, 5, ran, "every block of commands is found")
}

// emptyCluster takes a cluster without objects of our kinds, and leaves it so.
func emptyCluster(t *testing.T) (*local.Cluster, client) {
	t.Helper()
	cluster := ourCRDs.take(t)
	c := newClient(t, cluster)
	c.deleteAll(t)
	t.Cleanup(func() { c.deleteAll(t) })
	return cluster, c
}

// runPage runs the commands of a page of docs in a folder, and compares what they print
// with what the page shows. after, if set, is called after each block of commands. It
// returns how many blocks there are.
func runPage(t *testing.T, cluster *local.Cluster, page, dir, path string, yaml func(string), after func(block int)) (ran int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	require.NoError(t, err)
	plugin := strings.Replace(path, "PATH=", "PATH="+filepath.Dir(cluster.Program("webhook"))+string(os.PathListSeparator), 1)
	printed, ok := "", true
	for _, block := range regexp.MustCompile("(?ms)^( *)```(\\w+)\n(.*?)^ *```$").FindAllStringSubmatch(string(text), -1) {
		text := regexp.MustCompile("(?m)^"+block[1]).ReplaceAllString(block[3], "")
		switch block[2] {
		case "sh":
			require.True(t, ok, "a command that fails is followed by its output: %s", printed)
			printed, err = shell(t, cluster, dir, text, plugin)
			ok = err == nil
			if after != nil {
				after(ran)
			}
			ran++
		case "text":
			require.Equal(t, text, printed)
			ok = true // a finding is one
		case "yaml":
			yaml(text)
		}
	}
	require.True(t, ok, printed)
	return ran
}
