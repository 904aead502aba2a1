package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/test/local"
)

// row is a write of the admission table. Objects are YAML of spec and status.
type row struct {
	resource string
	stored   string // empty: a create
	want     string
	after    string // what is stored then; empty: what was wanted
	denied   string // words of the denial; empty: allowed
	schema   string // words of our CRD, where it denies before the webhook can
	warn     string
	emptied  bool // an object is left empty
}

const (
	ignition = "status: {observedProvisioningFormat: Ignition}"
	trimmed  = "surrounding whitespace was removed"
	replace1 = "spec: {operationKind: HostReplace, machineRef: worker-1}"
	pair     = "status: {targets: [{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}"
	enum     = `Unsupported value: "cloud-init": supported values: "CloudInit", "Ignition"`
	cel      = `status.targets[0].input: Forbidden: input.hostImage and input.provisioningFormat are immutable once set; a client that drops one of them is older than the field: upgrade it`
	begun    = "Forbidden: may not change because this operation has begun (status.targets is set); create a new MachineOperation instead"
	celBegun = " may not change once the operation has begun (status.phase or status.targets is set); create a new MachineOperation instead"
	final    = "is final for a HostReplace whose image and format are frozen; create a new MachineOperation instead"
	celFinal = "status.phase: Forbidden: a final phase may not change in a HostReplace whose image and format are frozen; create a new MachineOperation instead"
	worker1  = "{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: CloudInit}}"
	isFrozen = "conditions: [{type: Frozen, status: 'True', reason: PairFrozen, message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}]"
)

var rows = map[string]row{
	"Machine: image trimmed on create":      {resource: "machines", want: `spec: {host: {image: " img-a\n", provisioningFormat: CloudInit}}`, after: "spec: {host: {image: img-a, provisioningFormat: CloudInit}}", warn: "spec.host.image: " + trimmed},
	"Machine: blank image removed":          {resource: "machines", want: `spec: {host: {image: " \t", provisioningFormat: Ignition}}`, after: "spec: {host: {provisioningFormat: Ignition}}", warn: "spec.host.image: held only whitespace and was removed"},
	"Machine: image trimmed on update":      {resource: "machines", stored: "spec: {host: {image: img-a}}", want: `spec: {host: {image: "img-b "}}`, after: "spec: {host: {image: img-b}}", warn: trimmed},
	"Machine: no format is filled in":       {resource: "machines", want: "spec: {host: {image: img-a}}"},
	"Machine: bad format on create":         {resource: "machines", want: "spec: {host: {image: img-a, provisioningFormat: cloud-init}}", denied: "spec.host.provisioningFormat: " + enum},
	"Machine: bad format on update":         {resource: "machines", stored: "spec: {host: {image: img-a, provisioningFormat: CloudInit}}", want: "spec: {host: {image: img-a, provisioningFormat: cloud-init}}", denied: "spec.host.provisioningFormat: " + enum},
	"Machine: invisible character":          {resource: "machines", want: `spec: {host: {image: "img\u200b-a"}}`, denied: `spec.host.image: Invalid value: "img\u200b-a": may not contain the invisible character U+200B, found at position 4`},
	"Machine: image too long":               {resource: "machines", want: "spec: {host: {image: " + strings.Repeat("x", 2049) + "}}", denied: "spec.host.image: Too long: may not be longer than 2048 bytes, and has 2049"},
	"Machine: undeclared on Ignition":       {resource: "machines", stored: "{spec: {host: {}}, " + ignition + "}", want: "{spec: {host: {image: img-a}}, " + ignition + "}", denied: "spec.host.provisioningFormat: Required value: must be declared because this host is known to run Ignition"},
	"Machine: declared on Ignition":         {resource: "machines", stored: "{spec: {host: {}}, " + ignition + "}", want: "{spec: {host: {image: img-a, provisioningFormat: CloudInit}}, " + ignition + "}"},
	"Machine: declaration withdrawn":        {resource: "machines", stored: "{spec: {host: {image: img-a, provisioningFormat: Ignition}}, " + ignition + "}", want: "{spec: {host: {image: img-a}}, " + ignition + "}", denied: "spec.host.provisioningFormat: Required value: must be declared"},
	"Configuration: image trimmed":          {resource: "machineconfigurations", want: `spec: {template: {host: {image: " img-t", provisioningFormat: CloudInit}}}`, after: "spec: {template: {host: {image: img-t, provisioningFormat: CloudInit}}}", warn: "spec.template.host.image: " + trimmed},
	"Configuration: bad format":             {resource: "machineconfigurations", stored: "spec: {template: {host: {image: img-t}}}", want: "spec: {template: {host: {image: img-t, provisioningFormat: cloud-init}}}", denied: "spec.template.host.provisioningFormat: " + enum},
	"Configuration: format without image":   {resource: "machineconfigurations", want: "spec: {template: {host: {provisioningFormat: CloudInit}}}", warn: "spec.template.host.provisioningFormat: has no effect without an image beside it"},
	"Version: image trimmed":                {resource: "machineconfigurationversions", want: `spec: {version: 3, template: {host: {image: "img-t\u00a0", provisioningFormat: CloudInit}}}`, after: "spec: {version: 3, template: {host: {image: img-t, provisioningFormat: CloudInit}}}", warn: "spec.template.host.image: " + trimmed},
	"Version: bad format":                   {resource: "machineconfigurationversions", want: "spec: {version: 3, template: {host: {image: img-t, provisioningFormat: cloud-init}}}", denied: "spec.template.host.provisioningFormat: " + enum},
	"Version: format without image":         {resource: "machineconfigurationversions", want: "spec: {version: 3, template: {host: {provisioningFormat: CloudInit}}}", warn: "has no effect without an image"},
	"Version: edited before deployment":     {resource: "machineconfigurationversions", stored: "spec: {version: 3, template: {host: {image: img-t}}}", want: "spec: {version: 3, template: {host: {image: img-u}}}"},
	"Version: deployed":                     {resource: "machineconfigurationversions", stored: "{spec: {version: 3, template: {host: {image: img-t}}}, status: {deployed: true}}", want: "{spec: {version: 3, template: {host: {image: img-u}}}, status: {deployed: true}}", denied: "spec: Forbidden: may not change because this version is deployed (status.deployed); create the next version", schema: "spec: Forbidden: spec is immutable once status.deployed is true; create the next version instead"},
	"Operation: whole fleet":                {resource: "machineoperations", want: "spec: {operationKind: HostReplace, machineSelector: {}}", denied: "spec.machineSelector: Required value: must select by at least one label because an empty selector would replace every host of the fleet"},
	"Operation: by label":                   {resource: "machineoperations", want: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '7'}}}"},
	"Operation: begun, kind":                {resource: "machineoperations", stored: "{spec: {operationKind: HostReboot, machineRef: worker-1}, status: {phase: InProgress}}", want: "{" + replace1 + ", status: {phase: InProgress}}", denied: "spec.operationKind: Forbidden: may not change because this operation has begun (status.phase is InProgress); create a new MachineOperation instead", schema: "spec.operationKind: Forbidden: operationKind" + celBegun},
	"Operation: begun, kind away":           {resource: "machineoperations", stored: "{" + replace1 + ", " + pair + "}", want: "{spec: {operationKind: HostReboot, machineRef: worker-1}, " + pair + "}", denied: "spec.operationKind: " + begun, schema: "spec.operationKind: Forbidden: operationKind" + celBegun},
	"Operation: begun, machine":             {resource: "machineoperations", stored: "{" + replace1 + ", " + pair + "}", want: "{spec: {operationKind: HostReplace, machineRef: worker-2}, " + pair + "}", denied: "spec.machineRef: " + begun, schema: "spec.machineRef: Forbidden: machineRef" + celBegun},
	"Operation: begun, selector":            {resource: "machineoperations", stored: "{spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '7'}}}, " + pair + "}", want: "{spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '8'}}}, " + pair + "}", denied: "spec.machineSelector: " + begun, schema: "spec.machineSelector: Forbidden: machineSelector" + celBegun},
	"Operation: begun, selector's values":   {resource: "machineoperations", stored: "{spec: {operationKind: HostReplace, machineSelector: {matchExpressions: [{key: rack, operator: In, values: ['7']}]}}, " + pair + "}", want: "{spec: {operationKind: HostReplace, machineSelector: {matchExpressions: [{key: rack, operator: In, values: ['7', '8']}]}}, " + pair + "}", denied: "spec.machineSelector: " + begun, schema: "spec.machineSelector: Forbidden: machineSelector" + celBegun},
	"Operation: begun, selector's meaning":  {resource: "machineoperations", stored: "{spec: {operationKind: HostReplace, machineSelector: {matchExpressions: [{key: rack, operator: Exists, values: []}]}}, " + pair + "}", want: "{spec: {operationKind: HostReplace, machineSelector: {matchExpressions: [{key: rack, operator: Exists}], matchLabels: {}}}, " + pair + "}"},
	"Operation: begun, paused":              {resource: "machineoperations", stored: "{" + replace1 + ", status: {phase: InProgress}}", want: "{spec: {operationKind: HostReplace, machineRef: worker-1, parameters: {pause: 'true'}}, status: {phase: InProgress}}"},
	"Operation: kind before the start":      {resource: "machineoperations", stored: "{spec: {operationKind: HostReboot, machineRef: worker-1}, status: {message: m}}", want: "{" + replace1 + ", status: {message: m}}"},
	"Operation: free field":                 {resource: "machineoperations", stored: "{" + replace1 + ", " + pair + "}", want: "{spec: {operationKind: HostReplace, machineRef: worker-1, ttlSecondsAfterFinished: 60}, " + pair + "}"},
	"Status: set at once":                   {resource: "machineoperations/status", stored: replace1, want: "{" + replace1 + ", " + pair + "}"},
	"Status: newly set image trimmed":       {resource: "machineoperations/status", stored: replace1, want: "{" + replace1 + `, status: {targets: [{machineRef: worker-1, input: {hostImage: " img-a", provisioningFormat: CloudInit}}]}}`, after: pair, warn: "status.targets.0.input.hostImage: " + trimmed},
	"Status: bad format":                    {resource: "machineoperations/status", stored: replace1, want: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {provisioningFormat: cloud-init}}]}}", denied: "status.targets[worker-1].input.provisioningFormat: " + enum, schema: "status.targets[0].input.provisioningFormat: " + enum},
	"Status: invisible character":           {resource: "machineoperations/status", stored: replace1, want: "{" + replace1 + `, status: {targets: [{machineRef: worker-1, input: {hostImage: "img\ufeff", provisioningFormat: CloudInit}}]}}`, denied: "status.targets[worker-1].input.hostImage: Invalid value: \"img\\ufeff\": may not contain the invisible character U+FEFF"},
	"Status: free fields":                   {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {phase: Failed, message: m, targets: [{machineRef: worker-1, phase: Failed, attempts: 2, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}}"},
	"Status: target added":                  {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {targets: [{machineRef: worker-0}, {machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}}"},
	"Status: target added to frozen ones":   {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {" + isFrozen + ", targets: [" + worker1 + "]}}", want: "{" + replace1 + ", status: {" + isFrozen + ", targets: [" + worker1 + ", {machineRef: worker-2}]}}", denied: "status.targets[worker-2]: Forbidden: may not be added because the targets of this operation are frozen (condition Frozen is True); create a new MachineOperation for this Machine", schema: "status.targets: Forbidden: no target may be added once the condition Frozen is True; create a new MachineOperation for another Machine"},
	"Status: target in another's place":     {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {" + isFrozen + ", targets: [" + worker1 + ", {machineRef: worker-2}]}}", want: "{" + replace1 + ", status: {" + isFrozen + ", targets: [" + worker1 + ", {machineRef: worker-3}]}}", denied: "status.targets[worker-3]: Forbidden: may not be added because the targets of this operation are frozen"},
	"Status: frozen ones go on":             {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {phase: Pending, " + isFrozen + ", targets: [" + worker1 + "]}}", want: "{" + replace1 + ", status: {phase: Complete, " + isFrozen + ", targets: [{machineRef: worker-1, phase: Complete, attempts: 1, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}}"},
	"Status: final phase turned back":       {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {phase: Failed, targets: [" + worker1 + "]}}", want: "{" + replace1 + ", status: {phase: InProgress, targets: [" + worker1 + "]}}", denied: "status.phase: Forbidden: may not change because Failed " + final, schema: celFinal},
	"Status: final phase removed":           {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {phase: Complete, targets: [" + worker1 + "]}}", want: "{" + replace1 + ", status: {targets: [" + worker1 + "]}}", denied: "status.phase: Forbidden: may not change because Complete " + final, schema: celFinal},
	"Status: final phase changed":           {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {phase: Complete, targets: [" + worker1 + "]}}", want: "{" + replace1 + ", status: {phase: Failed, targets: [" + worker1 + "]}}", denied: "status.phase: Forbidden: may not change because Complete " + final, schema: celFinal},
	"Status: final phase of a reboot":       {resource: "machineoperations/status", stored: "{spec: {operationKind: HostReboot, machineRef: worker-1}, status: {phase: Failed, targets: [" + worker1 + "]}}", want: "{spec: {operationKind: HostReboot, machineRef: worker-1}, status: {phase: InProgress, targets: [" + worker1 + "]}}"},
	"Status: format gained by a legacy one": {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {hostImage: img-a}}]}}", want: "{" + replace1 + ", " + pair + "}"},
	"Status: image changed":                 {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {hostImage: img-b, provisioningFormat: CloudInit}}]}}", denied: `status.targets[worker-1].input.hostImage: Invalid value: "img-b": may not change because "img-a" is frozen; create a new MachineOperation`, schema: cel},
	"Status: format changed":                {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: Ignition}}]}}", denied: `status.targets[worker-1].input.provisioningFormat: Invalid value: "Ignition": may not change because CloudInit is frozen`, schema: cel},
	"Status: both changed after the end":    {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {phase: Complete, targets: [{machineRef: worker-1, phase: Complete, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}}", want: "{" + replace1 + ", status: {phase: Complete, targets: [{machineRef: worker-1, phase: Complete, input: {hostImage: img-b, provisioningFormat: Ignition}}]}}", denied: `status.targets[worker-1].input.hostImage: Invalid value: "img-b"`, schema: cel},
	"Status: image removed":                 {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {provisioningFormat: CloudInit}}]}}", denied: `status.targets[worker-1].input.hostImage: Required value: may not be removed because "img-a" is frozen`, schema: cel},
	"Status: format removed":                {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {phase: Failed, targets: [{machineRef: worker-1, input: {hostImage: img-a}}]}}", denied: "status.targets[worker-1].input.provisioningFormat: Required value: may not be removed because CloudInit is frozen with the image; the client that sent this is older than the field: upgrade it", schema: cel},
	"Status: input emptied":                 {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {}}]}}", denied: "status.targets[worker-1].input.hostImage: Required value: may not be removed", schema: cel, emptied: true},
	"Status: input removed":                 {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {targets: [{machineRef: worker-1}]}}", denied: "status.targets[worker-1].input.hostImage: Required value: may not be removed", schema: cel},
	"Status: target removed":                {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {targets: []}}", denied: "status.targets[worker-1]: Required value: may not be removed because its image and format are frozen"},
	"Status: list removed":                  {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {phase: Failed}}", denied: "status.targets[worker-1]: Required value: may not be removed because its image and format are frozen"},
	"Status: target under another key":      {resource: "machineoperations/status", stored: "{" + replace1 + ", " + pair + "}", want: "{" + replace1 + ", status: {targets: [{machineRef: worker-9, input: {hostImage: img-a, provisioningFormat: CloudInit}}]}}", denied: "status.targets[worker-1]: Required value: may not be removed"},
	"Status: kept image replaced":           {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {provisioningFormat: CloudInit}}]}}", want: "{" + replace1 + ", " + pair + "}", denied: `status.targets[worker-1].input.hostImage: Invalid value: "img-a": must stay empty because the pair is frozen to keep the current image`, schema: cel},
	"Status: legacy image changed":          {resource: "machineoperations/status", stored: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {hostImage: img-a}}]}}", want: "{" + replace1 + ", status: {targets: [{machineRef: worker-1, input: {hostImage: img-b}}]}}", denied: `status.targets[worker-1].input.hostImage: Invalid value: "img-b": may not change`, schema: cel},
}

// Every row holds through every method of writing, first as a dry run and then for
// real, with the same words. Of the methods that run kubectl, each row takes a third,
// and all with HOSTFORMAT_EVERY_WRITE.
func TestAdmissionTable(t *testing.T) {
	of := clusters(t)
	for i, name := range slices.Sorted(maps.Keys(rows)) {
		r := rows[name]
		for j, m := range methods {
			if m.process && !everyWrite && (i+j)%3 > 0 {
				continue // takes long: each row goes through some of these
			}
			if (r.stored == "" && !m.creates) || (r.stored != "" && !m.updates) || (m.noStatus && strings.HasSuffix(r.resource, "/status")) {
				continue
			}
			t.Run(name+"/"+m.name, func(t *testing.T) {
				t.Parallel()
				if r.emptied && strings.Contains(m.name, "server-side") {
					t.Skip("server-side apply makes null of an emptied object, which the schema refuses first")
				}
				runRow(t, of["our CRDs"], r, m)
			})
			if !m.process {
				t.Run(name+"/"+m.name+", foreign CRDs", func(t *testing.T) {
					needsLocal(t)
					t.Parallel()
					r := r
					r.schema = ""
					runRow(t, of["foreign CRDs"], r, m)
				})
			}
		}
	}
}

func runRow(t *testing.T, cluster *local.Cluster, r row, m method) {
	atOnce <- struct{}{}
	defer func() { <-atOnce }()
	c := newClient(t, cluster)
	ownCRDs := ourCRDs.has(cluster)
	name := uniqueName()
	a := attempt{cluster: cluster, client: c, resource: r.resource, want: object(t, r.resource, name, r.want)}
	if r.stored != "" {
		a.stored = object(t, r.resource, name, r.stored)
		if m.prepare != nil {
			m.prepare(t, a)
		} else {
			store(t, c, r.resource, a.stored)
		}
		a.stored = get(t, c, r.resource, name)
	}
	if a.sub() == "status" {
		a.want.Object["spec"] = a.stored.Object["spec"]
		if strings.Contains(m.name, "server-side") {
			delete(a.want.Object, "spec") // its manager does not own it there
		}
	} else {
		delete(a.want.Object, "status")
	}
	c.take()

	var dry answer
	if !m.noDryRun {
		a.dryRun = true
		dry = m.write(t, a)
		requireAnswer(t, r, dry, ownCRDs)
		stored, err := c.of(r.resource).Get(t.Context(), name, metav1.GetOptions{})
		if a.stored == nil {
			require.True(t, apierrors.IsNotFound(err), "a dry run stores nothing")
		} else {
			require.NoError(t, err)
			require.Equal(t, a.stored, stored, "a dry run stores nothing")
		}
		a.dryRun = false
	}
	got := m.write(t, a)
	requireAnswer(t, r, got, ownCRDs)
	if !m.noDryRun {
		require.Equal(t, dry, got, "a dry run says the same")
	}

	stored, err := c.of(r.resource).Get(t.Context(), name, metav1.GetOptions{})
	switch {
	case r.denied != "" && a.stored == nil:
		require.True(t, apierrors.IsNotFound(err), "a denied create stores nothing")
	case r.denied != "":
		require.NoError(t, err)
		require.Equal(t, a.stored, stored, "a denied update stores nothing")
	default:
		require.NoError(t, err)
		after := r.want
		if r.after != "" {
			after = r.after
		}
		require.Equal(t, object(t, r.resource, name, after).Object[a.part()], stored.Object[a.part()])
	}
	if err == nil {
		require.NoError(t, c.of(r.resource).Delete(t.Context(), name, metav1.DeleteOptions{}), "deletion is free")
	}
}

func requireAnswer(t *testing.T, r row, got answer, ownCRDs bool) {
	t.Helper()
	words := r.denied
	if ownCRDs && r.schema != "" {
		words = r.schema
	}
	if words == "" {
		require.Empty(t, got.err)
	} else {
		require.Contains(t, got.err, words)
		require.NotContains(t, got.err, "Internal error")
	}
	if r.warn == "" {
		require.Empty(t, got.warnings)
	} else {
		require.Contains(t, got.warnings, r.warn)
		require.Less(t, len(got.warnings), 256)
	}
}
