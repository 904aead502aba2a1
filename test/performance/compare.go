package main

import (
	"fmt"
	"io"
)

// compare tells for each target of docs/performance.md what was measured.
func (m *measurements) compare(out io.Writer) {
	at := func(plot, guard string, axis string, x float64) float64 {
		return median(m.samples[position{plot, guard, axis, x}])
	}
	tell := func(what string, measured, target float64) {
		verdict := "met"
		if measured > target {
			verdict = "missed"
		}
		fmt.Fprintf(out, "%-62s %5.2f of at most %.2f: %s\n", what, measured, target, verdict)
	}
	for _, write := range []string{"create", "label", "image"} {
		at := func(guard string) float64 { return at("Request", guard, "write="+write, 0) }
		tell("clean "+write+", against no admission", at(hostformat)/at(none), 1.06)
		tell("clean "+write+" that is sent to the webhook, against an idle one", at(every)/at(idle), 1.10)
	}
	tell("resident memory with "+fmt.Sprint(m.machines)+" Machines, against 100", at("Resident", every, "machines", float64(m.machines))/at("Resident", every, "machines", 100), 1.25)
	tell("seconds from start to ready", at("Start", every, "until=ready", 0)/1e9, 1)
}
