package admission

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
)

func TestValidateOperation(t *testing.T) {
	fleet := []cause{{required, "spec.machineSelector", "must select by at least one label because an empty selector would replace every host of the fleet"}}
	runRows(t, "machineoperations", map[string]row{
		"by name":                     {now: "spec: {operationKind: HostReplace, machineRef: worker-1}"},
		"by label":                    {now: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: '7'}}}"},
		"by expression":               {now: "spec: {operationKind: HostReplace, machineSelector: {matchExpressions: [{key: rack, operator: Exists}]}}"},
		"null selector":               {now: "spec: {operationKind: HostReplace, machineRef: worker-1, machineSelector: null}"},
		"the whole fleet":             {now: "spec: {operationKind: HostReplace, machineSelector: {}}", want: fleet},
		"the whole fleet, with lists": {now: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {}, matchExpressions: []}}", want: fleet},
		"the whole fleet, on update":  {was: "spec: {operationKind: HostReplace, machineRef: worker-1}", now: "spec: {operationKind: HostReplace, machineSelector: {}}", want: fleet},
		"the whole fleet, by kind":    {was: "spec: {operationKind: HostReboot, machineSelector: {}}", now: "spec: {operationKind: HostReplace, machineSelector: {}}", want: fleet},
		"the whole fleet, as before":  {was: "spec: {operationKind: HostReplace, machineSelector: {}}", now: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {}}, parameters: {a: b}}"},
		"the whole fleet, emptied":    {was: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {a: b}}}", now: "spec: {operationKind: HostReplace, machineSelector: {matchLabels: {}}}", want: fleet},
		"the whole fleet, from none":  {was: "spec: {operationKind: HostReplace}", now: "spec: {operationKind: HostReplace, machineSelector: {matchExpressions: []}}", want: fleet},
		"the whole fleet, stored":     {was: "spec: {operationKind: HostReplace, machineSelector: {}}", now: "{metadata: {labels: {a: b}}, spec: {operationKind: HostReplace, machineSelector: {}}}"},
		"another kind may":            {now: "spec: {operationKind: HostReboot, machineSelector: {}}"},
		"selector of the wrong shape": {now: "spec: {operationKind: HostReplace, machineSelector: all}", want: []cause{{typeInvalid, "spec.machineSelector", `"all": must be an object`}}},
		"kind of the wrong shape":     {now: "spec: {operationKind: 1}", want: []cause{{typeInvalid, "spec.operationKind", "1: must be a string"}}},
		"ref of the wrong shape":      {now: "spec: {operationKind: HostReplace, machineRef: [a]}", want: []cause{{typeInvalid, "spec.machineRef", `["a"]: must be a string`}}},
		"spec of the wrong shape":     {now: "spec: []", want: []cause{{typeInvalid, "spec", "[]: must be an object"}}},
		"a typed status is dropped":   {now: "{spec: {operationKind: HostReplace, machineRef: a}, status: {targets: [{machineRef: a, input: {provisioningFormat: weird}}]}}"},
	})
}

func TestValidateOperationKeepsWhatHasBegun(t *testing.T) {
	const (
		replace  = "operationKind: HostReplace, machineRef: worker-1"
		rack     = "operationKind: HostReboot, machineSelector: {matchLabels: {rack: '7'}}"
		byPhase  = "may not change because this operation has begun (status.phase is InProgress); create a new MachineOperation instead"
		byTarget = "may not change because this operation has begun (status.targets is set); create a new MachineOperation instead"
	)
	begun := func(spec string) string { return "{spec: {" + spec + "}, status: {phase: InProgress}}" }
	rows := map[string]row{
		"labelled":      {was: begun(replace), now: "{metadata: {labels: {a: b}}, spec: {" + replace + "}}"},
		"free fields":   {was: begun(replace), now: "spec: {" + replace + ", ttlSecondsAfterFinished: 60, parameters: {pause: 'true'}, knob: 1}"},
		"kind":          {was: begun("operationKind: HostReboot, machineRef: worker-1"), now: "spec: {" + replace + "}", want: []cause{{forbidden, "spec.operationKind", byPhase}}},
		"kind, away":    {was: begun(replace), now: "spec: {operationKind: HostReboot, machineRef: worker-1}", want: []cause{{forbidden, "spec.operationKind", byPhase}}},
		"kind gone":     {was: begun(replace), now: "spec: {machineRef: worker-1}", want: []cause{{forbidden, "spec.operationKind", byPhase}}},
		"machine":       {was: begun(replace), now: "spec: {operationKind: HostReplace, machineRef: worker-2}", want: []cause{{forbidden, "spec.machineRef", byPhase}}},
		"machine gone":  {was: begun(replace), now: "spec: {operationKind: HostReplace}", want: []cause{{forbidden, "spec.machineRef", byPhase}}},
		"machine added": {was: begun(rack), now: "spec: {" + rack + ", machineRef: worker-1}", want: []cause{{forbidden, "spec.machineRef", byPhase}}},
		"all at once": {was: begun(replace), now: "spec: {operationKind: HostReboot, machineSelector: {matchLabels: {a: b}}}",
			want: []cause{{forbidden, "spec.operationKind", byPhase}, {forbidden, "spec.machineRef", byPhase}, {forbidden, "spec.machineSelector", byPhase}}},
		"spec gone": {was: begun(replace), now: "{}", want: []cause{{forbidden, "spec.operationKind", byPhase}, {forbidden, "spec.machineRef", byPhase}}},
		"kind, to the whole fleet": {was: begun("operationKind: HostReboot, machineSelector: {}"), now: "spec: {operationKind: HostReplace, machineSelector: {}}",
			want: []cause{{required, "spec.machineSelector", "must select by at least one label"}, {forbidden, "spec.operationKind", byPhase}}},
		"in the wrong shape": {was: begun(replace), now: "spec: {operationKind: HostReplace, machineRef: [worker-1]}",
			want: []cause{{typeInvalid, "spec.machineRef", "must be a string"}, {forbidden, "spec.machineRef", byPhase}}},
		"while being deleted": {was: begun(replace), now: "{metadata: {deletionTimestamp: now}, spec: {operationKind: HostReplace, machineRef: worker-2}}",
			want: []cause{{forbidden, "spec.machineRef", byPhase}}},
		"machine null":  {was: begun(rack), now: "spec: {" + rack + ", machineRef: null}"},
		"machine empty": {was: begun(rack), now: "spec: {" + rack + ", machineRef: ''}"},

		"selector null":    {was: begun(replace), now: "spec: {" + replace + ", machineSelector: null}"},
		"selector added":   {was: begun(replace), now: "spec: {" + replace + ", machineSelector: {matchLabels: {a: b}}}", want: []cause{{forbidden, "spec.machineSelector", byPhase}}},
		"selector gone":    {was: begun(rack), now: "spec: {operationKind: HostReboot}", want: []cause{{forbidden, "spec.machineSelector", byPhase}}},
		"selector emptied": {was: begun(rack), now: "spec: {operationKind: HostReboot, machineSelector: {}}", want: []cause{{forbidden, "spec.machineSelector", byPhase}}},
		"empty selector added": {was: begun("operationKind: HostReboot, machineRef: worker-1"), now: "spec: {operationKind: HostReboot, machineRef: worker-1, machineSelector: {}}",
			want: []cause{{forbidden, "spec.machineSelector", byPhase}}},
		"selector in the wrong shape": {was: begun(rack), now: "spec: {operationKind: HostReboot, machineSelector: all}", want: []cause{{forbidden, "spec.machineSelector", byPhase}}},

		"a phase of the wrong shape": {was: "{spec: {" + replace + "}, status: {phase: [Pending]}}", now: "spec: {operationKind: HostReplace, machineRef: worker-2}",
			want: []cause{{forbidden, "spec.machineRef", `has begun (status.phase is ["Pending"])`}}},
		"targets of the wrong shape": {was: "{spec: {" + replace + "}, status: {targets: {a: b}}}", now: "spec: {operationKind: HostReplace, machineRef: worker-2}",
			want: []cause{{forbidden, "spec.machineRef", byTarget}}},
		"not begun":                  {was: "spec: {" + replace + "}", now: "spec: {" + rack + "}"},
		"not begun, an empty status": {was: "{spec: {" + replace + "}, status: {phase: '', targets: [], message: m}}", now: "spec: {" + rack + "}"},
		"a phase in the sent status": {was: "spec: {" + replace + "}", now: "{spec: {" + rack + "}, status: {phase: InProgress, targets: [{machineRef: a}]}}"},
		"stored with both":           {was: begun(replace + ", machineSelector: {}"), now: "{metadata: {labels: {a: b}}, spec: {" + replace + ", machineSelector: {}}}"},
	}
	for name, target := range map[string]string{
		"a pair": "{machineRef: worker-1, input: {hostImage: img-a, provisioningFormat: CloudInit}}", "a kept image": "{machineRef: worker-1, input: {provisioningFormat: CloudInit}}",
		"a legacy snapshot": "{machineRef: worker-1, input: {hostImage: img-a}}", "a target alone": "{machineRef: worker-1}", "an empty target": "{}",
	} {
		rows["begun by "+name] = row{was: "{spec: {" + replace + "}, " + status(target) + "}", now: "spec: {operationKind: HostReplace, machineRef: worker-2}",
			want: []cause{{forbidden, "spec.machineRef", byTarget}}}
	}
	for _, phase := range []string{"Pending", "Complete", "Failed", "Theirs"} {
		rows["begun by the phase "+phase] = row{was: "{spec: {" + replace + "}, status: {phase: " + phase + "}}", now: "spec: {operationKind: HostReplace, machineRef: worker-2}",
			want: []cause{{forbidden, "spec.machineRef", "has begun (status.phase is " + phase + ")"}}}
	}
	runRows(t, "machineoperations", rows)
}

// Selectors are compared by their meaning, since typed clients drop empty fields. All
// selectors of a line mean the same, and different lines differ.
func TestValidateOperationComparesSelectors(t *testing.T) {
	all := [][]string{
		{"null"},
		{"{}", "{matchLabels: {}}", "{matchLabels: null}", "{matchExpressions: []}", "{matchExpressions: null, matchLabels: {}}"},
		{"{matchLabels: {a: b}}", "{matchLabels: {a: b}, matchExpressions: []}", "{matchLabels: {a: b}, matchExpressions: null}"},
		{"{matchLabels: {a: c}}"},
		{"{matchLabels: {a: b, c: d}}", "{matchLabels: {c: d, a: b}}"},
		{"{matchLabels: {a: ''}}"},
		{"{matchExpressions: [{key: a, operator: Exists}]}", "{matchExpressions: [{key: a, operator: Exists, values: []}]}", "{matchLabels: {}, matchExpressions: [{key: a, operator: Exists, values: null}]}"},
		{"{matchExpressions: [{key: a, operator: DoesNotExist}]}"},
		{"{matchExpressions: [{key: b, operator: Exists}]}"},
		{"{matchExpressions: [{key: a, operator: In, values: [x]}]}"},
		{"{matchExpressions: [{key: a, operator: In, values: [z]}]}"},
		{"{matchExpressions: [{key: a, operator: In, values: [x, y]}]}"},
		{"{matchExpressions: [{key: a, operator: Exists}, {key: b, operator: Exists}]}"},
		{"{matchLabels: {a: b}, matchExpressions: [{key: a, operator: Exists}]}"},
		{"{knob: {}}"},
		{"{matchLabels: {a: b}, knob: 1}"},
		{"{matchExpressions: [{}]}"},
		{"{matchExpressions: [x]}"},
		{"all"},
	}
	for i, line := range all {
		for j, other := range all {
			for _, was := range line {
				for _, now := range other {
					t.Run(was+" to "+now, func(t *testing.T) {
						response := post(t, ValidatePath, request(t, "machineoperations", "{spec: {operationKind: HostReboot, machineSelector: "+was+"}, status: {phase: Pending}}",
							"spec: {operationKind: HostReboot, machineSelector: "+now+"}"))
						if i == j {
							require.True(t, response.Allowed, response.Result)
							return
						}
						requireCauses(t, "machineoperations", response, []cause{{forbidden, "spec.machineSelector", "may not change because this operation has begun (status.phase is Pending)"}})
					})
				}
			}
		}
	}
}

// An update without the stored object is refused.
func TestValidateOperationNeedsTheStoredObject(t *testing.T) {
	for _, resource := range []string{"machineoperations", "machineoperations/status"} {
		r := request(t, resource, "{}", "spec: {operationKind: HostReplace, machineRef: a}")
		r.Operation = admissionv1.Update
		for _, raw := range [][]byte{nil, []byte("null")} {
			r.OldObject.Raw = raw
			response := post(t, ValidatePath, r)
			require.False(t, response.Allowed)
			require.Equal(t, int32(http.StatusBadRequest), response.Result.Code)
			require.Contains(t, response.Result.Message, "an update of MachineOperation cannot be judged without the stored object")
		}
	}
}
