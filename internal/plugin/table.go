package plugin

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/internal/resolve"
)

// values returns explanations as they are printed.
func values(machines []*explanation) (found []any) {
	for _, e := range machines {
		found = append(found, e)
	}
	return found
}

// explanationTable makes a row of each Machine. Unless it is wide, images are cut to
// the width that names and reasons leave; names are never cut, since they may be
// copied.
func explanationTable(machines []*explanation, wide bool) *metav1.Table {
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string"}, {Name: "Image", Type: "string"}, {Name: "Format", Type: "string"}, {Name: "Refused", Type: "string"},
		{Name: "Image from", Type: "string", Priority: 1}, {Name: "Format from", Type: "string", Priority: 1},
		{Name: "Provider", Type: "string", Priority: 1}, {Name: "Provider ID", Type: "string", Priority: 1}, {Name: "Claim", Type: "string", Priority: 1}, {Name: "Message", Type: "string", Priority: 1},
	}}
	const between, least = 3, len("(the current image)")
	name, format, reason := len("NAME"), len("FORMAT"), len("REFUSED")
	for _, e := range machines {
		name, format, reason = max(name, len(shown(e.Name))), max(format, len(e.Format)), max(reason, len(e.Reason))
	}
	room := max(width-name-format-reason-3*between, least)
	for _, e := range machines {
		image := shownImage(e)
		if !wide {
			image = resolve.Cut(image, room)
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{shown(e.Name), image, shownOr(e.Format), shownOr(string(e.Reason)), shownOr(string(e.ImageSource)), shownOr(string(e.FormatSource)),
			shownOr(shown(e.Provider)), shownOr(shown(e.ProviderID)), shownHolder(e), visible(e.Refused)}})
	}
	return table
}
