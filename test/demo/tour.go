package main

import "strings"

type chapter struct {
	title string
	steps []step
}

const (
	worker1 = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: Machine
metadata: {name: worker-1}
spec:
  host:
    image: "  acme/os/plain-24:v3 "
    provisioningFormat: CloudInit`

	badFormat = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: Machine
metadata: {name: worker-2}
spec:
  host:
    image: acme/os/plain-24:v3
    provisioningFormat: cloud-init`

	worker3 = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: Machine
metadata: {name: worker-3}
spec: {}`

	replacement = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: MachineOperation
metadata: {name: replace-worker-1}
spec: {operationKind: HostReplace, machineRef: worker-1}`

	rewrite = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: MachineOperation
metadata: {name: replace-worker-1}
status:
  phase: InProgress
  targets:
  - machineRef: worker-1
    input: {hostImage: acme/os/other:v9, provisioningFormat: CloudInit}`

	wholeFleet = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: MachineOperation
metadata: {name: replace-all}
spec: {operationKind: HostReplace, machineSelector: {}}`

	worker4 = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: Machine
metadata: {name: worker-4}
spec:
  host:
    external: {provider: Simulated, providerID: chassis-4}
  configurationRef: {name: edge}`

	edge3 = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: MachineConfigurationVersion
metadata:
  name: edge-v3
  labels: {unbounded-cloud.io/machine-configuration: edge}
spec:
  version: 3
  template:
    host: {image: "acme/os/plain-24:v3"}`

	replace4 = `
apiVersion: unbounded-cloud.io/v1alpha3
kind: MachineOperation
metadata: {name: NAME}
spec: {operationKind: HostReplace, machineRef: worker-4}`

	immutable = "input.hostImage and input.provisioningFormat are immutable once set"
)

var tour = []chapter{
	{"Images are trimmed", []step{
		{why: "An image with surrounding whitespace is trimmed, and a warning says so.",
			args: "apply -f -", stdin: worker1,
			says: []string{"Warning: spec.host.image: surrounding whitespace was removed", "machine.unbounded-cloud.io/worker-1 created"}},
		{why: "This is what was stored.",
			args: "get machine worker-1 -o 'jsonpath={.spec.host}'",
			says: []string{`{"image":"acme/os/plain-24:v3","provisioningFormat":"CloudInit"}`}},
	}},
	{"A format is CloudInit or Ignition", []step{
		{why: "A dry run is judged like a real request. The value is refused and never repaired: a repaired format would count as a declaration.",
			args: "apply --dry-run=server -f -", stdin: badFormat, refused: true,
			says: []string{`The Machine "worker-2" is invalid: spec.host.provisioningFormat: Unsupported value: "cloud-init": supported values: "CloudInit", "Ignition"`}},
	}},
	{"A host that runs Ignition does not get an image of unknown format", []step{
		{why: "A Machine without any declaration.",
			args: "apply -f -", stdin: worker3, says: []string{"worker-3 created"}},
		{why: "Its agent reports the format from the installation config: Ignition. It never guesses from the running system.",
			agent: `{"MachineName": "worker-3", "ProvisioningFormat": "ignition"}`,
			says:  []string{"reported Ignition for Machine worker-3"}},
		{why: "A cloud-init image could destroy this host, so an image without a format is refused.",
			args: `patch machine worker-3 --type=merge -p '{"spec":{"host":{"image":"acme/os/plain-24:v3"}}}'`, refused: true,
			says: []string{`The Machine "worker-3" is invalid: spec.host.provisioningFormat: Required value: must be declared because this host is known to run Ignition`}},
		{why: "With a declared format, the image is accepted.",
			args: `patch machine worker-3 --type=merge -p '{"spec":{"host":{"image":"acme/os/plain-24:v3","provisioningFormat":"CloudInit"}}}'`,
			says: []string{"patched"}},
		{why: "The declaration cannot be removed while the image stays.",
			args: `patch machine worker-3 --type=json -p '[{"op":"remove","path":"/spec/host/provisioningFormat"}]'`, refused: true,
			says: []string{"must be declared"}},
		{why: "Labels can be changed as usual.",
			args: "label machine worker-3 rack=7", says: []string{"labeled"}, not: []string{"Warning"}},
	}},
	{"A replacement freezes one pair of image and format", []step{
		{why: "An operation that would replace the whole fleet is refused.",
			args: "create -f -", stdin: wholeFleet, refused: true,
			says: []string{"spec.machineSelector: Required value: must select by at least one label because an empty selector would replace every host of the fleet"}},
		{why: "An operation for one Machine.",
			args: "create -f -", stdin: replacement, says: []string{"replace-worker-1 created"}},
		{why: "Before anything destructive happens, a controller records the pair. From now on, it is frozen.",
			args: `patch mop replace-worker-1 --subresource=status --type=merge -p '{"status":{"phase":"InProgress","targets":[{"machineRef":"worker-1","input":{"hostImage":"acme/os/plain-24:v3","provisioningFormat":"CloudInit"}}]}}'`,
			says: []string{"patched"}},
		{why: "A merge patch cannot change it (the CRD alone refuses that, even while no webhook runs) ...",
			args: `patch mop replace-worker-1 --subresource=status --type=merge -p '{"status":{"targets":[{"machineRef":"worker-1","input":{"hostImage":"acme/os/other:v9","provisioningFormat":"CloudInit"}}]}}'`, refused: true,
			says: []string{immutable}},
		{why: "... nor can a JSON patch ...",
			args: `patch mop replace-worker-1 --subresource=status --type=json -p '[{"op":"replace","path":"/status/targets/0/input/provisioningFormat","value":"Ignition"}]'`, refused: true,
			says: []string{immutable}},
		{why: "... nor server-side apply that takes over the ownership ...",
			args: "apply --server-side --force-conflicts --subresource=status -f -", stdin: rewrite, refused: true,
			says: []string{immutable}},
		{why: "... nor a replacement of the object, dry run or not ...",
			args: "replace --dry-run=server --subresource=status -f -", stdin: rewrite, refused: true,
			says: []string{immutable}},
		{why: "... nor a client that is older than the format field and rewrites the status without it ...",
			args: `patch mop replace-worker-1 --subresource=status --type=merge -p '{"status":{"phase":"Complete","targets":[{"machineRef":"worker-1","input":{"hostImage":"acme/os/plain-24:v3"}}]}}'`, refused: true,
			says: []string{"a client that drops one of them is older than the field: upgrade it"}},
		{why: "... nor the removal of the whole target, which only the webhook can see ...",
			args: `patch mop replace-worker-1 --subresource=status --type=json -p '[{"op":"remove","path":"/status/targets"}]'`, refused: true,
			says: []string{"status.targets[worker-1]: Required value: may not be removed because its image and format are frozen"}},
		{why: "... nor an edit that points the operation at another Machine.",
			args: `patch mop replace-worker-1 --type=merge -p '{"spec":{"machineRef":"worker-3"}}'`, refused: true,
			says: []string{"spec.machineRef: Forbidden: machineRef may not change once the operation has begun"}},
		{why: "Progress can be recorded freely.",
			args: `patch mop replace-worker-1 --subresource=status --type=json -p '[{"op":"replace","path":"/status/phase","value":"Complete"},{"op":"add","path":"/status/targets/0/attempts","value":1}]'`,
			says: []string{"patched"}},
		{why: "The frozen pair is unchanged.",
			args: "get mop", says: []string{"worker-1", "HostReplace", "Complete", "acme/os/plain-24:v3", "CloudInit"}},
	}},
	{"The controller replaces hosts with the frozen pair", []step{
		{why: "A Machine whose host is replaced by the simulated provider. Its image comes from a configuration.",
			args: "apply -f -", stdin: worker4, says: []string{"worker-4 created"}},
		{why: "The version of the configuration selects an image without a format.",
			args: "apply -f -", stdin: edge3, says: []string{"edge-v3 created"}},
		{why: "The host runs Ignition.",
			agent: `{"MachineName": "worker-4", "ProvisioningFormat": "ignition"}`,
			says:  []string{"reported Ignition"}},
		{why: "An operation would have to guess the format.",
			args: "create -f -", stdin: strings.Replace(replace4, "NAME", "undeclared", 1), says: []string{"created"}},
		{why: "It does not: it fails at once, and nothing is frozen.",
			args: "wait mop undeclared --for 'jsonpath={.status.phase}=Failed' --timeout=30s", says: []string{"condition met"}},
		{args: "get mop undeclared -o 'jsonpath={.status.message}'", why: "Its message says what to do.",
			says: []string{`Machine "worker-4": Machine spec.host.provisioningFormat: must be declared because the host is known to run Ignition and MachineConfigurationVersion edge-v3 spec.template.host.image selects "acme/os/plain-24:v3"`}},
		{why: "Declared as Ignition, the format is known ...",
			args: `patch machine worker-4 --type=merge -p '{"spec":{"host":{"provisioningFormat":"Ignition"}}}'`, says: []string{"patched"}},
		{why: "... but this controller generates cloud-init only and cannot deliver it.",
			args: "create -f -", stdin: strings.Replace(replace4, "NAME", "ignition", 1), says: []string{"created"}},
		{args: "wait mop ignition --for 'jsonpath={.status.phase}=Failed' --timeout=30s", why: "It fails before the provider is called.", says: []string{"condition met"}},
		{why: "The provider records each call in this ConfigMap. It does not exist yet: there were no calls.",
			args: "get configmap simulated-provider -n hostformat-system", refused: true, says: []string{"not found"}},
		{why: "Declared as CloudInit, the host can be replaced.",
			args: `patch machine worker-4 --type=merge -p '{"spec":{"host":{"provisioningFormat":"CloudInit"}}}'`, says: []string{"patched"}},
		{args: "create -f -", stdin: strings.Replace(replace4, "NAME", "cloudinit", 1), why: "The same operation again, under another name.", says: []string{"created"}},
		{args: "wait mop cloudinit --for=condition=Frozen --timeout=30s", why: "Image and format are frozen together, in one write, before the provider is called.", says: []string{"condition met"}},
		{why: "A user edits the Machine while its host is being replaced.",
			args: `patch machine worker-4 --type=merge -p '{"spec":{"host":{"image":"acme/os/other:v9","provisioningFormat":"Ignition"}}}'`, says: []string{"patched"}},
		{args: "wait mop cloudinit --for=condition=Complete --timeout=30s", why: "The operation continues with the frozen pair.", says: []string{"condition met"}},
		{why: "The provider got the frozen pair, in one call.",
			args: "get configmap simulated-provider -n hostformat-system -o 'jsonpath={.data}'",
			says: []string{`\"image\":\"acme/os/plain-24:v3\",\"format\":\"CloudInit\"`, `\"destructiveCalls\":1`}},
		{why: "All operations of this tour.",
			args: "get mop", says: []string{"undeclared", "Failed", "cloudinit", "Complete"}},
		{why: "The Events of the last operation.",
			args: "get events -n default --field-selector involvedObject.name=cloudinit -o 'custom-columns=REASON:.reason,MESSAGE:.message'",
			says: []string{"image acme/os/plain-24:v3 from MachineConfigurationVersion edge-v3, format CloudInit from machine", "the host was replaced"}},
	}},
}
