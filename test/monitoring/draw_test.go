package monitoring

import (
	"bytes"
	"context"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"regexp"

	"github.com/prometheus/common/model"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours that people with colour-blindness tell apart, too.
var colours = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x44, 0x44, 0x44, 0xff}, {0x99, 0x33, 0x33, 0xff},
}

// units are what Grafana's units are called on an axis.
var units = map[string]string{"ops": "per second", "reqps": "per second", "s": "seconds", "d": "days", "short": "number"}

// draw writes the picture of a panel, with its legend beside it.
func (p panel) draw(ctx context.Context, prometheus server) error {
	const width, height, legendWidth = vg.Length(640), vg.Length(240), vg.Length(205)
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 10}
	chart, legend := plot.New(), plot.NewLegend()
	for _, style := range []*draw.TextStyle{
		&chart.Title.TextStyle, &chart.X.Label.TextStyle, &chart.Y.Label.TextStyle, &chart.X.Tick.Label, &chart.Y.Tick.Label, &legend.TextStyle,
	} {
		style.Font = sans
	}
	chart.Title.TextStyle.Font.Size, chart.Title.Padding = 13, 6
	chart.X.Label.Text = "seconds into the run"
	unit, known := units[p.FieldConfig.Defaults.Unit]
	if !known {
		return fmt.Errorf("unit %q has no name", p.FieldConfig.Defaults.Unit)
	}
	chart.Title.Text, chart.Y.Label.Text = p.Title, unit
	chart.BackgroundColor = color.White
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe6}, color.Gray{0xe6}
	chart.Add(grid)
	legend.Top, legend.Left, legend.Padding, legend.ThumbnailWidth = true, true, 2, 14
	legend.YOffs = -26

	drawn := 0
	for _, target := range p.Targets {
		matrix, err := prometheus.over(ctx, target.Expr)
		if err != nil {
			return err
		}
		for _, series := range matrix {
			style := draw.LineStyle{Color: colours[drawn%len(colours)], Width: 1.5}
			drawn++
			for i, xys := range segments(series.Values, prometheus.begun.UnixMilli()) {
				line, err := plotter.NewLine(xys)
				if err != nil {
					return err
				}
				line.LineStyle = style
				chart.Add(line)
				if i == 0 {
					legend.Add(target.legend(series.Metric), line)
				}
			}
		}
	}
	chart.Y.Min, chart.X.Min = 0, 0
	chart.Y.Max *= 1.05

	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Path())
	chart.Draw(draw.Crop(whole, 4, -legendWidth, 4, -4))
	legend.Draw(draw.Crop(whole, width-legendWidth+8, 0, 0, 0))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// Not everybody has the font whose sizes were reckoned with.
	text := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
	return os.WriteFile(filepath.Join(pictures, p.picture()), text, 0o644)
}

// segments turns samples into points without gaps.
func segments(samples []model.SamplePair, begun int64) (all []plotter.XYs) {
	const gap = 1500 // ms, where there is a sample a second
	last := int64(math.MinInt64 / 2)
	for _, sample := range samples {
		value, at := float64(sample.Value), int64(sample.Timestamp)
		if math.IsNaN(value) || math.IsInf(value, 0) {
			continue
		}
		if at-last > gap {
			all = append(all, nil)
		}
		last = at
		all[len(all)-1] = append(all[len(all)-1], plotter.XY{X: float64(at-begun) / 1000, Y: value})
	}
	return all
}

var placeholder = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)

// legend is what a series of the target is called.
func (t target) legend(metric model.Metric) string {
	return placeholder.ReplaceAllStringFunc(t.LegendFormat, func(match string) string {
		return string(metric[model.LabelName(placeholder.FindStringSubmatch(match)[1])])
	})
}
