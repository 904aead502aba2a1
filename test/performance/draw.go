package main

import (
	"cmp"
	"image/color"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours that people with colour-blindness tell apart, too.
var colours = map[string]color.RGBA{
	none: {0x44, 0x44, 0x44, 0xff}, policy: {0x56, 0xb4, 0xe9, 0xff}, idle: {0xe6, 0x9f, 0x00, 0xff},
	every: {0xd5, 0x5e, 0x00, 0xff}, hostformat: {0x00, 0x72, 0xb2, 0xff},
}

var names = map[string]string{
	none: "no admission", policy: "policies", idle: "idle webhook", every: "hostformat, every write", hostformat: "hostformat",
}

// draw writes a plot of the medians of each series.
func (m *measurements) draw(dir string) error {
	for _, p := range []struct {
		plot, file, title, x, y, axis string
		scale                         float64
		linear                        bool
	}{
		{"Targets", "targets", "A status write, by frozen targets", "targets", "milliseconds", "targets", 1e6, false},
		{"Size", "size", "An image edit, by size of the Machine", "bytes", "milliseconds", "bytes", 1e6, false},
		{"Stored", "stored", "A create, by Machines stored", "Machines", "milliseconds", "machines", 1e6, true},
		{"Throughput", "throughput", "Creates a second, by clients", "clients", "a second", "clients", 1, true},
		{"Tail", "tail", "What one create of a hundred waits, by clients", "clients", "milliseconds", "clients", 1e6, false},
		{"Resident", "resident", "Resident memory of the webhook, by Machines stored", "Machines", "MiB", "machines", 1 << 20, true},
	} {
		chart := plot.New()
		sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 10}
		for _, style := range []*draw.TextStyle{&chart.Title.TextStyle, &chart.X.Label.TextStyle, &chart.Y.Label.TextStyle, &chart.X.Tick.Label, &chart.Y.Tick.Label, &chart.Legend.TextStyle} {
			style.Font = sans
		}
		chart.Title.TextStyle.Font.Size, chart.Title.Padding = 13, 6
		chart.Title.Text, chart.X.Label.Text, chart.Y.Label.Text = p.title, p.x, p.y
		chart.BackgroundColor = color.White
		chart.X.Scale, chart.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		if p.linear {
			chart.Y.Min = 0
		} else {
			chart.Y.Scale, chart.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		}
		chart.Legend.Top, chart.Legend.Left = true, true
		for _, guard := range guards {
			var points plotter.XYs
			for at, samples := range m.samples {
				if at.plot == p.plot && at.guard == guard && at.axis == p.axis {
					points = append(points, plotter.XY{X: at.x, Y: median(samples) / p.scale})
				}
			}
			slices.SortFunc(points, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
			if points == nil {
				continue
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Color, line.Width, dots.Color, dots.Shape = colours[guard], vg.Points(1.5), colours[guard], draw.CircleGlyph{}
			chart.Add(line, dots)
			chart.Legend.Add(names[guard], line, dots)
			if p.linear {
				for _, point := range points {
					chart.Y.Max = max(chart.Y.Max, point.Y*1.5)
				}
			}
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := chart.Save(600, 330, filepath.Join(dir, p.file+".svg")); err != nil {
			return err
		}
	}
	return nil
}

func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
