package admission

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
)

// Every request gets an answer, the same one each time, and never from a panic.
func FuzzReview(f *testing.F) {
	const head = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE","kind":{"group":"unbounded-cloud.io","version":"v1alpha3","kind":"Machine"},`
	for _, body := range []string{
		head + `"object":{"spec":{"host":{"image":" a","provisioningFormat":"x"}}},"oldObject":{"spec":{}}}}`,
		head + `"object":{"spec":{"host":{"image":"a"}},"spec":{"host":{"Image":7}}},"oldObject":null}}`,
		head + `"object":{"spec":[[1e999,-0,9007199254740993]],"status":"\ud800"},"oldObject":{"spec":5}}}`,
		strings.Replace(head, "Machine\"", "MachineOperation\"", 1) + `"subResource":"status","object":{"status":{"targets":[null,{"machineRef":[],"input":5}]}},"oldObject":{"status":{"targets":{}}}}}`,
		head + `"object":` + strings.Repeat(`{"spec":`, 100) + `1` + strings.Repeat(`}`, 100) + `}}`, // deeper ones are in TestBadRequests
		"\xff\xfe", `{"request":null}`, `[]`, ``, head,
	} {
		f.Add(true, []byte(body))
		f.Add(false, []byte(body))
	}
	server := newMux()
	f.Fuzz(func(t *testing.T, mutating bool, body []byte) {
		path := ValidatePath
		if mutating {
			path = MutatePath
		}
		answer := func() string {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(string(body)))
			request.Header.Set("Content-Type", "application/json")
			recorder := httptest.NewRecorder()
			server.ServeHTTP(recorder, request)
			require.Equal(t, http.StatusOK, recorder.Code)
			return recorder.Body.String()
		}
		first := answer()
		var review admissionv1.AdmissionReview
		require.NoError(t, json.Unmarshal([]byte(first), &review), first)
		require.NotNil(t, review.Response)
		if review.Response.Result != nil {
			require.NotContains(t, review.Response.Result.Message, "panic")
		}
		require.Equal(t, first, answer())
	})
}

// For any stored and new object, the conditions of the API server do not fail, and the
// request is sent if the webhook denies it, patches it or warns about it. post checks
// both.
func FuzzConditions(f *testing.F) {
	for i := range guarded {
		for _, objects := range [][2]string{
			{``, `{"spec":{"host":{"image":" a","provisioningFormat":"x"},"template":{"host":{"provisioningFormat":"Ignition"}},"operationKind":"HostReplace","machineSelector":{}}}`},
			{`{"spec":5,"status":{"observedProvisioningFormat":"Ignition","deployed":true,"targets":[{"machineRef":"a","input":{"hostImage":"x","provisioningFormat":"CloudInit"}}]}}`,
				`{"spec":{"host":{"image":"a"}},"status":{"targets":[{"machineRef":"a","input":{"hostImage":"y"}},{"machineRef":[null,7.5]}]}}`},
			{`{"spec":{"template":{"host":{"image":" a"}}},"status":[]}`, `{"spec":{"template":{"host":{"image":" a"}}},"status":{"targets":{"a":"b"}}}`},
			{`{"spec":{"operationKind":"HostReplace","machineSelector":{"matchExpressions":[{"key":"a","values":[]}]}},"status":{"phase":"Failed","conditions":[{"type":"Frozen","status":"True"}],"targets":[{"machineRef":"a","input":{"provisioningFormat":"CloudInit"}}]}}`,
				`{"spec":{"machineSelector":{}},"status":{"phase":"Pending","targets":[{"machineRef":"a","input":{"provisioningFormat":"CloudInit"}},{"machineRef":"b"}]}}`},
		} {
			f.Add(byte(i), []byte(objects[0]), []byte(objects[1]))
		}
	}
	f.Fuzz(func(t *testing.T, which byte, was, now []byte) {
		if largeNumber.Match(was) || largeNumber.Match(now) {
			t.Skip("CEL compares integers with floating point numbers as such; no schema allows either where a rule reads")
		}
		r := request(t, guarded[int(which)%len(guarded)], "", "{}")
		r.Object.Raw = now
		if len(was) > 0 {
			r.Operation, r.OldObject.Raw = admissionv1.Update, was
		}
		if _, _, ok := asStored(r); !ok || (r.SubResource != "" && len(was) == 0) {
			t.Skip("the API server has no such objects, or creates no status")
		}
		post(t, ValidatePath, r)
		post(t, MutatePath, r)
	})
}

var (
	guarded     = []string{"machines", "machineconfigurations", "machineconfigurationversions", "machineoperations", "machineoperations/status"}
	largeNumber = regexp.MustCompile(`[0-9]{16}|[0-9.][eE]`)
)

// The verdict on a status update equals that of a plain comparison: every stored target
// with an image or a format must be there once, with the same values; no target is added
// to frozen ones; and a final phase stays if a pair is frozen.
func FuzzFrozenPair(f *testing.F) {
	f.Add([]byte{0, 4, 2}, []byte{0, 4, 2}, byte(0))
	f.Add([]byte{0, 4, 0, 1, 0, 2}, []byte{1, 0, 2, 0, 3, 2}, byte(0))
	f.Add([]byte{0, 4, 2, 1, 5, 3}, []byte{1, 5, 3}, byte(0))
	f.Add([]byte{2, 0, 2}, []byte{2, 4, 2, 2, 4, 2}, byte(0))
	f.Add([]byte{0, 4, 2}, []byte{0, 4, 2, 1, 4, 2}, byte(1))           // added to frozen ones
	f.Add([]byte{0, 4, 2}, []byte{0, 4, 2}, byte(2+4*(3+5*1)))          // a HostReplace, from Complete to Pending
	f.Add([]byte{0, 4, 2}, []byte{0, 4, 2}, byte(2+4*(2+5*3)))          // from InProgress to Complete
	f.Add([]byte{0, 4, 0}, []byte{0, 4, 2, 1, 0, 0}, byte(2+4*(4+5*0))) // a legacy snapshot's Failed is removed
	f.Fuzz(func(t *testing.T, was, now []byte, rest byte) {
		before, after := targets(was), targets(now)
		if hasTwice(before) {
			t.Skip("the API server stores no Machine twice")
		}
		phases := []string{"", "Pending", "InProgress", "Complete", "Failed"}
		frozen, replace := rest%2 == 1, rest/2%2 == 1
		phaseWas, phaseNow := phases[rest/4%5], phases[rest/20%5]
		allowed, pair := !hasTwice(after), false
		for _, s := range before {
			pair = pair || s.format != ""
			if s.image() == "" && s.format == "" {
				continue
			}
			i := slices.IndexFunc(after, func(n fuzzTarget) bool { return sameRef(n, s) })
			kept := i >= 0 && after[i].image() == s.image() && (s.format == "" || after[i].format == s.format)
			allowed = allowed && kept
		}
		for _, n := range after {
			known := slices.ContainsFunc(before, func(s fuzzTarget) bool { return sameRef(n, s) })
			allowed = allowed && (known || !frozen)
		}
		final := phaseWas == "Complete" || phaseWas == "Failed"
		allowed = allowed && (!replace || !pair || !final || phaseWas == phaseNow)

		kind, condition := "HostReboot", "False"
		if replace {
			kind = "HostReplace"
		}
		if frozen {
			condition = "True"
		}
		object := func(phase string, targets []fuzzTarget) string {
			return fmt.Sprintf("{spec: {operationKind: %s}, status: {phase: %q, conditions: [{type: Frozen, status: %q}], targets: [%s]}}", kind, phase, condition, shown(targets))
		}
		response := post(t, ValidatePath, request(t, "machineoperations/status", object(phaseWas, before), object(phaseNow, after)))
		require.Equal(t, allowed, response.Allowed, "%s\n%s\n%v", object(phaseWas, before), object(phaseNow, after), response.Result)
	})
}

// fuzzTarget is a target with a small choice of values, in YAML.
type fuzzTarget struct{ ref, hostImage, format string }

func (t fuzzTarget) image() string { return strings.TrimSpace(t.hostImage) }

func sameRef(a, b fuzzTarget) bool { return a.ref == b.ref }

func hasTwice(targets []fuzzTarget) bool {
	seen := map[string]bool{}
	for _, t := range targets {
		if seen[t.ref] {
			return true
		}
		seen[t.ref] = true
	}
	return false
}

func targets(bytes []byte) []fuzzTarget {
	var all []fuzzTarget
	for triple := range slices.Chunk(bytes, 3) {
		if len(triple) == 3 {
			all = append(all, fuzzTarget{
				ref:       []string{"a", "b", "c", "d"}[triple[0]%4],
				hostImage: []string{"", " ", "\t\n", " x", "x", "y"}[triple[1]%6],
				format:    []string{"", "", "CloudInit", "Ignition"}[triple[2]%4],
			})
		}
	}
	return all
}

func shown(targets []fuzzTarget) string {
	var text []string
	for _, t := range targets {
		text = append(text, fmt.Sprintf("{machineRef: %s, input: {hostImage: %q, provisioningFormat: %q}}", t.ref, t.hostImage, t.format))
	}
	return strings.Join(text, ", ")
}
