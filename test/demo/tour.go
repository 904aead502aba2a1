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
		{why: "An image pasted with whitespace round it is trimmed, and a warning says so.",
			args: "apply -f -", stdin: worker1,
			says: []string{"Warning: spec.host.image: surrounding whitespace was removed", "machine.unbounded-cloud.io/worker-1 created"}},
		{why: "This is what was stored.",
			args: "get machine worker-1 -o 'jsonpath={.spec.host}'",
			says: []string{`{"image":"acme/os/plain-24:v3","provisioningFormat":"CloudInit"}`}},
	}},
	{"A format is CloudInit or Ignition", []step{
		{why: "A dry run is judged as the real thing is. The value is refused, never repaired: a repaired format would count as somebody's declaration.",
			args: "apply --dry-run=server -f -", stdin: badFormat, refused: true,
			says: []string{`The Machine "worker-2" is invalid: spec.host.provisioningFormat: Unsupported value: "cloud-init": supported values: "CloudInit", "Ignition"`}},
	}},
	{"A host that runs Ignition is not given an image of unknown format", []step{
		{why: "A Machine that nobody has declared anything about.",
			args: "apply -f -", stdin: worker3, says: []string{"worker-3 created"}},
		{why: "Its agent reports what the installation says: Ignition. It never guesses from the running system.",
			agent: `{"MachineName": "worker-3", "ProvisioningFormat": "ignition"}`,
			says:  []string{"reported Ignition for Machine worker-3"}},
		{why: "Taken for cloud-init, an image could destroy this host. So an image alone is refused.",
			args: `patch machine worker-3 --type=merge -p '{"spec":{"host":{"image":"acme/os/plain-24:v3"}}}'`, refused: true,
			says: []string{`The Machine "worker-3" is invalid: spec.host.provisioningFormat: Required value: must be declared because this host is known to run Ignition`}},
		{why: "With its format declared, it is accepted.",
			args: `patch machine worker-3 --type=merge -p '{"spec":{"host":{"image":"acme/os/plain-24:v3","provisioningFormat":"CloudInit"}}}'`,
			says: []string{"patched"}},
		{why: "The declaration cannot be withdrawn while the image stays.",
			args: `patch machine worker-3 --type=json -p '[{"op":"remove","path":"/spec/host/provisioningFormat"}]'`, refused: true,
			says: []string{"must be declared"}},
		{why: "Labels are nobody's business but yours.",
			args: "label machine worker-3 rack=7", says: []string{"labeled"}, not: []string{"Warning"}},
	}},
	{"A replacement freezes one pair of image and format", []step{
		{why: "An operation that would replace the whole fleet is refused.",
			args: "create -f -", stdin: wholeFleet, refused: true,
			says: []string{"spec.machineSelector: Required value: must select by at least one label because an empty selector would replace every host of the fleet"}},
		{why: "An operation for one Machine.",
			args: "create -f -", stdin: replacement, says: []string{"replace-worker-1 created"}},
		{why: "Before anything destructive happens, a controller records the pair: it is frozen from here on.",
			args: `patch mop replace-worker-1 --subresource=status --type=merge -p '{"status":{"phase":"InProgress","targets":[{"machineRef":"worker-1","input":{"hostImage":"acme/os/plain-24:v3","provisioningFormat":"CloudInit"}}]}}'`,
			says: []string{"patched"}},
		{why: "It cannot be changed by a merge patch (the CRD alone sees to that, even while no webhook runs) ...",
			args: `patch mop replace-worker-1 --subresource=status --type=merge -p '{"status":{"targets":[{"machineRef":"worker-1","input":{"hostImage":"acme/os/other:v9","provisioningFormat":"CloudInit"}}]}}'`, refused: true,
			says: []string{immutable}},
		{why: "... nor by a JSON patch ...",
			args: `patch mop replace-worker-1 --subresource=status --type=json -p '[{"op":"replace","path":"/status/targets/0/input/provisioningFormat","value":"Ignition"}]'`, refused: true,
			says: []string{immutable}},
		{why: "... nor by server-side apply, whoever claims to own it ...",
			args: "apply --server-side --force-conflicts --subresource=status -f -", stdin: rewrite, refused: true,
			says: []string{immutable}},
		{why: "... nor by replacing the object, dry or not ...",
			args: "replace --dry-run=server --subresource=status -f -", stdin: rewrite, refused: true,
			says: []string{immutable}},
		{why: "... nor by a client from before the format field, which rewrites the status without it ...",
			args: `patch mop replace-worker-1 --subresource=status --type=merge -p '{"status":{"phase":"Complete","targets":[{"machineRef":"worker-1","input":{"hostImage":"acme/os/plain-24:v3"}}]}}'`, refused: true,
			says: []string{"a client that drops one of them is older than the field: upgrade it"}},
		{why: "... nor by removing the target altogether, which only the webhook can see ...",
			args: `patch mop replace-worker-1 --subresource=status --type=json -p '[{"op":"remove","path":"/status/targets"}]'`, refused: true,
			says: []string{"status.targets[worker-1]: Required value: may not be removed because its image and format are frozen"}},
		{why: "... nor by pointing the operation at another Machine.",
			args: `patch mop replace-worker-1 --type=merge -p '{"spec":{"machineRef":"worker-3"}}'`, refused: true,
			says: []string{"spec.machineRef: Forbidden: machineRef may not change once the operation has begun"}},
		{why: "Progress is free to be recorded.",
			args: `patch mop replace-worker-1 --subresource=status --type=json -p '[{"op":"replace","path":"/status/phase","value":"Complete"},{"op":"add","path":"/status/targets/0/attempts","value":1}]'`,
			says: []string{"patched"}},
		{why: "The pair that was frozen is the pair that stands.",
			args: "get mop", says: []string{"worker-1", "HostReplace", "Complete", "acme/os/plain-24:v3", "CloudInit"}},
	}},
	{"The controller replaces hosts by the frozen pair", []step{
		{why: "A Machine whose host is replaced by the simulated provider. Its image comes from a configuration.",
			args: "apply -f -", stdin: worker4, says: []string{"worker-4 created"}},
		{why: "The configuration's version selects an image and does not say what it boots with.",
			args: "apply -f -", stdin: edge3, says: []string{"edge-v3 created"}},
		{why: "The host runs Ignition.",
			agent: `{"MachineName": "worker-4", "ProvisioningFormat": "ignition"}`,
			says:  []string{"reported Ignition"}},
		{why: "So an operation would have to guess, and does not.",
			args: "create -f -", stdin: strings.Replace(replace4, "NAME", "undeclared", 1), says: []string{"created"}},
		{why: "It fails at once, with nothing frozen, and says what to do.",
			args: "wait mop undeclared --for 'jsonpath={.status.phase}=Failed' --timeout=30s", says: []string{"condition met"}},
		{args: "get mop undeclared -o 'jsonpath={.status.message}'", why: "This is what it says.",
			says: []string{`Machine "worker-4": Machine spec.host.provisioningFormat: must be declared because the host is known to run Ignition and MachineConfigurationVersion edge-v3 spec.template.host.image selects "acme/os/plain-24:v3"`}},
		{why: "Declared as Ignition, it is clear what the host needs ...",
			args: `patch machine worker-4 --type=merge -p '{"spec":{"host":{"provisioningFormat":"Ignition"}}}'`, says: []string{"patched"}},
		{why: "... and that this controller, which generates cloud-init only, cannot deliver it.",
			args: "create -f -", stdin: strings.Replace(replace4, "NAME", "ignition", 1), says: []string{"created"}},
		{args: "wait mop ignition --for 'jsonpath={.status.phase}=Failed' --timeout=30s", why: "It fails before the provider is called.", says: []string{"condition met"}},
		{why: "The provider records each call in this ConfigMap. There is none: destructive calls, 0.",
			args: "get configmap simulated-provider -n hostformat-system", refused: true, says: []string{"not found"}},
		{why: "Declared as CloudInit, it can be replaced.",
			args: `patch machine worker-4 --type=merge -p '{"spec":{"host":{"provisioningFormat":"CloudInit"}}}'`, says: []string{"patched"}},
		{args: "create -f -", stdin: strings.Replace(replace4, "NAME", "cloudinit", 1), why: "The same operation once more.", says: []string{"created"}},
		{args: "wait mop cloudinit --for=condition=Frozen --timeout=30s", why: "Image and format are frozen together, in one write, before anything is called.", says: []string{"condition met"}},
		{why: "Somebody edits the Machine while its host is being replaced.",
			args: `patch machine worker-4 --type=merge -p '{"spec":{"host":{"image":"acme/os/other:v9","provisioningFormat":"Ignition"}}}'`, says: []string{"patched"}},
		{args: "wait mop cloudinit --for=condition=Complete --timeout=30s", why: "The operation goes on with what was frozen.", says: []string{"condition met"}},
		{why: "This is what the provider got, once.",
			args: "get configmap simulated-provider -n hostformat-system -o 'jsonpath={.data}'",
			says: []string{`\"image\":\"acme/os/plain-24:v3\",\"format\":\"CloudInit\"`, `\"destructiveCalls\":1`}},
		{why: "All operations of this tour.",
			args: "get mop", says: []string{"undeclared", "Failed", "cloudinit", "Complete"}},
		{why: "The story of the last one, for those who come later.",
			args: "get events -n default --field-selector involvedObject.name=cloudinit -o 'custom-columns=REASON:.reason,MESSAGE:.message'",
			says: []string{"image acme/os/plain-24:v3 from MachineConfigurationVersion edge-v3, format CloudInit from machine", "the host was replaced"}},
	}},
}
