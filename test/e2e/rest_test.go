package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/test/local"
)

// Whatever is in the way of an operation or of a version: the controllers make at most
// 20 requests in 10 s about an object that does not change. The API server counts.
func TestControllersAtRest(t *testing.T) {
	needsLocal(t)
	takesLong(t)
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte(`
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: Request, verbs: [create], resources: [{group: unbounded-cloud.io}]}
  - {level: Metadata, resources: [{group: unbounded-cloud.io}, {group: coordination.k8s.io}, {group: events.k8s.io}]}
  - {level: None}
`), 0o600))
	log := filepath.Join(dir, "audit.log")
	cluster := takeOwn(t, local.Options{APIServer: map[string]string{"audit-policy-file": policy, "audit-log-path": log}})
	c := newClient(t, cluster)

	objects := map[string][]string{} // names in requests, by what they stand for
	ends := map[string]string{}      // operations that end, with their reason
	for name, s := range situations(c) {
		rack, op := s.arrange(t, c)
		objects[name] = []string{rack, op}
		if s.want != "" {
			ends[op] = s.want
		}
	}
	waits := func(name, fields, provider string) {
		machine, op := uniqueName(), uniqueName()
		store(t, c, "machines", object(t, "machines", machine, "spec: {host: {image: img-m, provisioningFormat: CloudInit"+provider+"}}"))
		createOperation(t, c, op, "machineRef: "+machine+fields)
		objects[name] = []string{machine, op}
	}
	waits("paused", ", parameters: {pause: 'true'}", ", external: {provider: Simulated}")
	waits("of another provider", "", ", external: {provider: Elsewhere}")
	waits("of no provider", "", "")
	missing := uniqueName()
	createOperation(t, c, missing, "machineRef: nobody-"+missing)
	objects["no Machine"] = []string{missing}

	// What is in the way of a version.
	blocked := map[string]string{}
	configuration := func(reason, image, labels string) string {
		name := uniqueName()
		u := object(t, "machineconfigurations", name, "metadata: {labels: {"+labels+"}}\nspec: {template: {host: {image: '"+image+"', provisioningFormat: CloudInit}}}")
		u.SetName(name)
		store(t, c, "machineconfigurations", u)
		blocked[name], objects[reason] = reason, []string{name}
		return name
	}
	version := func(configuration string, number int64, label bool) {
		v := object(t, "machineconfigurationversions", fmt.Sprintf("%s-v%d", configuration, number), fmt.Sprintf("{spec: {version: %d, template: {host: {image: by-hand, provisioningFormat: CloudInit}}}, status: {deployed: true}}", number))
		if label {
			v.SetLabels(map[string]string{v1alpha3.ConfigurationLabel: configuration})
		}
		store(t, c, "machineconfigurationversions", v)
	}
	version(configuration("NameTaken", "img-1", ""), 1, false)
	version(configuration("NoFurtherVersion", "img-1", ""), 2147483647, true)
	configuration("StatusLost", "img-1", v1alpha3.RestoreLabel+": nightly")
	require.NoError(t, cluster.RemoveWebhook(t.Context()))
	configuration("VersionRefused", "img \u200b", "")
	require.NoError(t, cluster.InstallWebhook(t.Context()))

	startControllers(t, cluster, cluster.Kubeconfig, "*,machineconfiguration", "--simulated-provider=duration=1h")
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		for op, want := range ends {
			assert.Equal(collect, want, reason(get(collect, c, "machineoperations", op)), op)
		}
		for name, want := range blocked {
			assert.Contains(collect, blockedBy(get(collect, c, "machineconfigurations", name)), want+": ")
		}
	}, patience, interval)
	name := objects["NameTaken"][0]
	require.Contains(t, blockedBy(get(t, c, "machineconfigurations", name)), fmt.Sprintf("MachineConfigurationVersion %q has the name of the next version, but not the label %s: %s", name+"-v1", v1alpha3.ConfigurationLabel, name))
	out, err := cluster.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector=involvedObject.name="+name)
	require.NoError(t, err, out)
	require.Equal(t, 1, strings.Count(out, "NameTaken"), out)

	// Ten seconds, as the API server's own log says.
	from := time.Now()
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		get(collect, c, "machineoperations", missing)
		assert.Greater(collect, lastOf(collect, requestsIn(t, log)).Sub(from), 10*time.Second)
	}, patience, interval)
	counts := map[string]int{}
	total := 0
	for _, request := range requestsIn(t, log) {
		if request.At.Before(from) || !strings.HasPrefix(request.UserAgent, "webhook/") || request.Verb == "watch" {
			continue
		}
		total++
		for what, names := range objects {
			if slices.ContainsFunc(names, request.about) {
				counts[what]++
			}
		}
	}
	t.Logf("%d requests in 10 s about %d objects: %v", total, len(objects), counts)
	require.NotZero(t, counts["NameTaken"]+counts["VersionRefused"], "they are tried again")
	for what := range objects {
		require.LessOrEqual(t, counts[what], 20, what)
	}
	require.LessOrEqual(t, total, 20*len(objects), "with those about Leases and Events")

	// Once the name is free, the version is created.
	require.NoError(t, c.of("machineconfigurationversions").Delete(t.Context(), name+"-v1", metav1.DeleteOptions{}))
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Equal(collect, name, get(collect, c, "machineconfigurationversions", name+"-v1").GetLabels()[v1alpha3.ConfigurationLabel])
		assert.Empty(collect, blockedBy(get(collect, c, "machineconfigurations", name)))
	}, patience, interval)
	_, err = c.of("machineconfigurations").Patch(t.Context(), objects["VersionRefused"][0], types.MergePatchType, []byte(`{"spec":{"template":{"host":{"image":"img-1"}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		get(collect, c, "machineconfigurationversions", objects["VersionRefused"][0]+"-v1")
	}, patience, interval)
}

// apiRequest is an entry of the audit log.
type apiRequest struct {
	Verb, UserAgent, RequestURI string
	At                          time.Time `json:"stageTimestamp"`
	RequestObject               struct {
		Metadata struct{ Name string }
	}
}

// about reports whether a request names an object, or one whose name begins with its.
func (r apiRequest) about(name string) bool {
	for _, text := range []string{r.RequestURI, r.RequestObject.Metadata.Name} {
		if _, after, found := strings.Cut(text, name); found && (after == "" || after[0] < '0' || after[0] > '9') {
			return true
		}
	}
	return false
}

func requestsIn(t *testing.T, path string) (requests []apiRequest) {
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r apiRequest
		if json.Unmarshal(lines.Bytes(), &r) == nil { // the last line may not be whole yet
			requests = append(requests, r)
		}
	}
	return requests
}

func lastOf(t asserting, requests []apiRequest) time.Time {
	if !assert.NotEmpty(t, requests) {
		return time.Time{}
	}
	return requests[len(requests)-1].At
}
