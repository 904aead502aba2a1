package plugin

import (
	"fmt"
	"strings"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// describe writes the explanation of one object.
func (w writer) describe(value any) {
	switch e := value.(type) {
	case *explanation:
		fmt.Fprintln(w, w.bold(e.Kind+" "+shown(e.Name)))
		w.pair("  ", e)
	case *operationExplanation:
		fmt.Fprintln(w, w.bold(e.Kind+" "+shown(e.Name)))
		w.field("  ", "phase", shownOr(e.Phase), nil)
		if e.Refused != "" {
			w.field("  ", "refused", string(e.Reason)+": "+e.Refused, w.red)
		}
		switch {
		case len(e.WaitsFor) == 0:
		case e.WaitsFor[0] == "":
			w.field("  ", "waits for", "nobody: a Machine has no provider (spec.host.external.provider), and no controller starts the operation", w.yellow)
		default:
			w.field("  ", "waits for", "a controller that has provider "+shown(strings.Join(e.WaitsFor, ", ")), nil)
		}
		switch {
		case len(e.Targets) > 0:
		case e.finished:
			w.field("  ", "targets", "none; it ended before one was frozen", nil)
		default:
			w.field("  ", "targets", "none", nil)
		}
		for _, t := range e.Targets {
			w.target(t)
		}
	}
}

func (w writer) pair(indent string, e *explanation) {
	w.provider(indent, e)
	if e.Format != "" {
		w.imageField(indent, "image", shownImage(e), source(e.ImageSource, e.Version), nil)
		w.field(indent, "format", e.Format+", "+source(e.FormatSource, e.Version), nil)
	}
	w.claim(indent, e)
	if e.Refused == "" {
		w.field(indent, "refused", "no", w.green)
	} else {
		w.field(indent, "refused", string(e.Reason)+": "+e.Refused, w.red)
	}
	if e.Note != "" {
		w.field(indent, "note", e.Note, w.yellow)
	}
}

// provider writes the provider of a Machine, if it has one.
func (w writer) provider(indent string, e *explanation) {
	switch {
	case e.Provider != "" && e.ProviderID != "":
		w.field(indent, "provider", shown(e.Provider)+", providerID "+shown(e.ProviderID), nil)
	case e.Provider != "":
		w.field(indent, "provider", shown(e.Provider)+", without a providerID", nil)
	case e.ProviderID != "":
		w.field(indent, "provider", "none, providerID "+shown(e.ProviderID), nil)
	}
}

// claim writes which operation may replace the host of a Machine now.
func (w writer) claim(indent string, e *explanation) {
	c := e.Claim
	switch {
	case !e.asked:
	case c == nil:
		w.field(indent, "claim", "not known", w.yellow)
	case c.Holder != "" && e.own:
		w.field(indent, "claim", "held by this operation (Lease "+c.Lease+")", nil)
	case c.Holder != "":
		w.field(indent, "claim", "held by MachineOperation "+c.Holder+" (Lease "+c.Lease+")", w.yellow)
	case c.claim.Holder.Name != "":
		w.field(indent, "claim", "free; last held by MachineOperation "+c.claim.Holder.Name+" (Lease "+c.Lease+")", nil)
	case c.stored:
		w.field(indent, "claim", "free (Lease "+c.Lease+")", nil)
	default:
		w.field(indent, "claim", "free", nil)
	}
}

// shownHolder returns the holder of the claim on a host, for a table.
func shownHolder(e *explanation) string {
	switch {
	case !e.asked:
		return "-"
	case e.Claim == nil:
		return "?"
	case e.Claim.Holder == "":
		return "free"
	default:
		return shown(e.Claim.Holder)
	}
}

// target describes a target of an operation: its frozen pair, why it would fail,
// and what its Machine says today.
func (w writer) target(t targetExplanation) {
	fmt.Fprintf(w, "  target %s\n", w.bold(shownOr(shown(t.Machine))))
	const legacy = "it predates the format field"
	switch {
	case !t.recorded:
		w.field("    ", "frozen", "not yet", nil)
	case t.Frozen:
		w.imageField("    ", "frozen", shownKept(t.Image), shown(t.Format), nil)
	case t.Format != "":
		w.imageField("    ", "snapshot", shownKept(t.Image), t.Format+" as of today: "+legacy+", and its format may still change", w.yellow)
	case t.finished:
		w.imageField("    ", "snapshot", shownKept(t.Image), "without a format: "+legacy, nil)
	default:
		w.imageField("    ", "snapshot", shownKept(t.Image), "and no format today: "+legacy, w.yellow)
	}
	if t.Refused != "" && (t.recorded || t.Now == nil || t.Refused != t.Now.Refused) {
		w.field("    ", "refused", string(t.Reason)+": "+t.Refused, w.red)
	}
	missing := w.red
	if t.finished {
		missing = w.yellow // it does not matter any more
	}
	switch {
	case t.Now == nil:
		w.field("    ", "today", "the Machine does not exist", missing)
	case t.recorded && t.Now.Reason == resolve.Unreadable && t.Refused != t.Now.Refused:
		w.field("    ", "today", t.Now.Refused, missing)
	case t.recorded && t.Reason == resolve.Unreadable:
		// This is the line above.
	case t.Frozen && len(t.Differs) == 0:
		w.provider("    ", t.Now)
		w.claim("    ", t.Now)
		w.field("    ", "today", "the Machine says the same", w.green)
	default:
		fmt.Fprintln(w, "    today the Machine says")
		w.pair("      ", t.Now)
		if len(t.Differs) > 0 {
			w.field("    ", "differs", strings.Join(t.Differs, ", "), w.yellow)
		}
	}
}

// source describes where half a pair comes from.
func source(source resolve.Source, version string) string {
	switch source {
	case resolve.FromMachine:
		return "declared in the Machine"
	case resolve.FromTemplate:
		return "from MachineConfigurationVersion " + version
	case resolve.FromObservation:
		return "as its agent observed"
	case resolve.FromFallback:
		return "as a legacy fallback: nothing is declared or observed"
	case resolve.Kept:
		return "which the host has"
	default:
		return string(source)
	}
}

func shownImage(e *explanation) string {
	if e.Format == "" {
		return "-"
	}
	return shownKept(e.Image)
}

func shownKept(image string) string {
	if image == "" {
		return "(the current image)"
	}
	return shown(image)
}

func shownOr(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
