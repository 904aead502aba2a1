package resolve

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// The twelve rules of resolution as a table, which the test reads. "set" stands for a
// value, "-" for none, and "any" for both. "M", "T", "F", "G" and "O" in a result name
// the column that it comes from.
var table = strings.TrimSpace(`
row | machine image | template image | machine format | template format | observation | image | format    | image source | format source
1   | set           | any            | set            | any             | any         | M     | F         | machine      | machine
2   | set           | any            | -              | any             | Ignition    | error | error     |              |
3   | set           | any            | -              | any             | CloudInit   | M     | CloudInit | machine      | observation
4   | set           | any            | -              | any             | -           | M     | CloudInit | machine      | legacy fallback
5   | -             | set            | set            | any             | any         | T     | F         | template     | machine
6   | -             | set            | -              | set             | any         | T     | G         | template     | template
7   | -             | set            | -              | -               | Ignition    | error | error     |              |
8   | -             | set            | -              | -               | CloudInit   | T     | CloudInit | template     | observation
9   | -             | set            | -              | -               | -           | T     | CloudInit | template     | legacy fallback
10  | -             | -              | set            | any             | any         | keep  | F         | kept         | machine
11  | -             | -              | -              | any             | set         | keep  | O         | kept         | observation
12  | -             | -              | -              | any             | -           | keep  | CloudInit | kept         | legacy fallback
`)

func rows(t *testing.T) [][]string {
	t.Helper()
	var rows [][]string
	for line := range strings.Lines(table) {
		var cells []string
		for cell := range strings.SplitSeq(line, "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		require.Len(t, cells, 10, line)
		rows = append(rows, cells)
	}
	return rows[1:]
}

func matches(cell, value string) bool {
	switch cell {
	case "any":
		return true
	case "set":
		return value != ""
	case "-":
		return value == ""
	default:
		return cell == value
	}
}

func machineWith(image, format, observed string) *v1alpha3.Machine {
	m := &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
	if image != "" || format != "" {
		m.Spec.Host = &v1alpha3.MachineHost{HostTemplate: v1alpha3.HostTemplate{
			Image: image, ProvisioningFormat: v1alpha3.ProvisioningFormat(format)}}
	}
	m.Status.ObservedProvisioningFormat = v1alpha3.ProvisioningFormat(observed)
	return m
}

func versionWith(image, format string) *v1alpha3.MachineConfigurationVersion {
	v := &v1alpha3.MachineConfigurationVersion{ObjectMeta: metav1.ObjectMeta{Name: "edge-v3"}}
	if image != "" || format != "" {
		v.Spec.Template.Host = &v1alpha3.HostTemplate{Image: image, ProvisioningFormat: v1alpha3.ProvisioningFormat(format)}
	}
	return v
}

// Every combination of the columns, also with whitespace around images, matches exactly
// one row and resolves as that row says.
func TestMachineFollowsTheTable(t *testing.T) {
	formats := []string{"", "CloudInit", "Ignition"}
	blanks := []string{"", " \n"}
	met := map[string]int{}
	for _, m := range append(blanks, "img-m", "\timg-m ") {
		for _, tmpl := range append(blanks, "img-t", "\u00a0img-t\r\n") {
			for _, f := range formats {
				for _, g := range formats {
					for _, o := range formats {
						columns := []string{strings.TrimSpace(m), strings.TrimSpace(tmpl), f, g, o}
						var row []string
						for _, candidate := range rows(t) {
							fits := true
							for i, value := range columns {
								fits = fits && matches(candidate[i+1], value)
							}
							if fits {
								require.Nil(t, row, "rows %v and %v both match %q", row, candidate, columns)
								row = candidate
							}
						}
						require.NotNil(t, row, "no row matches %q", columns)
						met[row[0]]++

						got, fault := Machine(machineWith(m, f, o), versionWith(tmpl, g))
						if row[6] == "error" {
							require.Equal(t, FormatNotDeclared, fault.Reason)
							require.Zero(t, got)
							continue
						}
						require.Empty(t, fault, "row %s, columns %q", row[0], columns)
						named := map[string]string{"M": "img-m", "T": "img-t", "keep": "", "F": f, "G": g, "O": o, "CloudInit": "CloudInit"}
						require.Equal(t, Result{
							Pair:         Pair{Image: named[row[6]], Format: v1alpha3.ProvisioningFormat(named[row[7]])},
							ImageSource:  Source(row[8]),
							FormatSource: Source(row[9]),
							Version:      map[string]string{"template": "edge-v3"}[row[8]],
						}, got, "row %s, columns %q", row[0], columns)
					}
				}
			}
		}
	}
	require.Len(t, met, 12, "every row is met")
}

func TestMachineWithoutVersionKeepsTheImage(t *testing.T) {
	got, fault := Machine(machineWith("", "", "Ignition"), nil)
	require.Empty(t, fault)
	require.Equal(t, Result{Pair: Pair{Format: v1alpha3.Ignition}, ImageSource: Kept, FormatSource: FromObservation}, got)
}

func TestMachineErrorsSayWhatToDo(t *testing.T) {
	long := strings.Repeat("x", v1alpha3.MaxImageBytes+1)
	for name, test := range map[string]struct {
		machine *v1alpha3.Machine
		version *v1alpha3.MachineConfigurationVersion
		reason  Reason
		words   []string
	}{
		"undeclared override": {
			machineWith("img-m", "", "Ignition"), nil, FormatNotDeclared,
			[]string{"Machine spec.host.provisioningFormat: must be declared", `Machine spec.host.image selects "img-m"`, "CloudInit or Ignition"},
		},
		"undeclared template": {
			machineWith("", "", "Ignition"), versionWith("img-t", ""), FormatNotDeclared,
			[]string{`MachineConfigurationVersion edge-v3 spec.template.host.image selects "img-t"`},
		},
		"machine format": {
			machineWith("img-m", "cloud-init", ""), nil, InvalidFormat,
			[]string{`Machine spec.host.provisioningFormat: unsupported value "cloud-init": supported values: "CloudInit", "Ignition"; did you mean "CloudInit"?`},
		},
		"machine format without an image": {
			machineWith("", "butane", ""), nil, InvalidFormat, []string{`"butane"`},
		},
		"template format": {
			machineWith("", "", ""), versionWith("img-t", "IGNITION"), InvalidFormat,
			[]string{"MachineConfigurationVersion edge-v3 spec.template.host.provisioningFormat", `did you mean "Ignition"?`},
		},
		"observation": {
			machineWith("", "", "weird"), nil, InvalidFormat,
			[]string{`Machine status.observedProvisioningFormat: unsupported value "weird"`},
		},
		"invisible character": {
			machineWith("img\u200bm", "CloudInit", ""), nil, InvalidImage,
			[]string{`Machine spec.host.image: "img\u200bm" may not contain the invisible character U+200B, found at position 4`},
		},
		"only an invisible character": {
			machineWith("\u200b", "CloudInit", ""), nil, InvalidImage, []string{"U+200B", "position 1"},
		},
		"inner newline": {
			machineWith("", "", ""), versionWith("a\nb", "CloudInit"), InvalidImage,
			[]string{`MachineConfigurationVersion edge-v3 spec.template.host.image: "a\nb"`, "U+000A"},
		},
		"long image": {
			machineWith(long, "CloudInit", ""), nil, InvalidImage,
			[]string{"may not be longer than 2048 bytes, and has 2049"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, fault := Machine(test.machine, test.version)
			require.Equal(t, test.reason, fault.Reason)
			require.Zero(t, got)
			require.Less(t, len(fault.Message), 600, "a message is bounded")
			for _, words := range test.words {
				require.Contains(t, fault.Message, words)
			}
		})
	}
}

// Values that a resolution does not read cannot fail it.
func TestMachineIgnoresWhatItDoesNotRead(t *testing.T) {
	for name, test := range map[string]struct {
		machine *v1alpha3.Machine
		version *v1alpha3.MachineConfigurationVersion
	}{
		"template beside a machine image":        {machineWith("img-m", "CloudInit", ""), versionWith("a\nb", "weird")},
		"template format under a machine format": {machineWith("", "CloudInit", ""), versionWith("img-t", "weird")},
		"template format without image":          {machineWith("", "CloudInit", ""), versionWith("", "weird")},
		"observation under a declaration":        {machineWith("img-m", "CloudInit", "weird"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, fault := Machine(test.machine, test.version)
			require.Empty(t, fault)
			require.Equal(t, v1alpha3.CloudInit, got.Format)
		})
	}
}

func TestImageBoundaries(t *testing.T) {
	require.Empty(t, ImageFault(strings.Repeat("x", v1alpha3.MaxImageBytes)))
	require.NotEmpty(t, ImageFault(strings.Repeat("é", v1alpha3.MaxImageBytes/2)+"x"), "bytes count, not characters")
	require.Empty(t, ImageFault("acme/os/my image"), "inner spaces stay")
	require.Empty(t, ImageFault("a\u00a0b"), "an inner no-break space is a space")
	for _, r := range []rune{0x00, 0x09, 0x0a, 0x7f, 0x85, 0xad, 0x200b, 0x200d, 0x2060, 0xfeff} {
		require.NotEmpty(t, ImageFault("a"+string(r)+"b"), "%U", r)
	}
}

func TestExcerpt(t *testing.T) {
	require.Equal(t, strings.Repeat("x", 80), Excerpt(strings.Repeat("x", 80)))
	require.Equal(t, strings.Repeat("x", 77)+"...", Excerpt(strings.Repeat("x", 81)))
	require.Equal(t, strings.Repeat("x", 76)+"...", Excerpt(strings.Repeat("x", 76)+"ééé"), "no character is cut in two")
}

func TestSnapshot(t *testing.T) {
	for name, test := range map[string]struct {
		hostImage               string
		machineFormat, observed string
		want                    Result
		reason                  Reason
	}{
		"machine says Ignition":  {"img-old", "Ignition", "", Result{Pair: Pair{"img-old", "Ignition"}, ImageSource: FromSnapshot, FormatSource: FromMachine}, ""},
		"machine says CloudInit": {" img-old ", "CloudInit", "Ignition", Result{Pair: Pair{"img-old", "CloudInit"}, ImageSource: FromSnapshot, FormatSource: FromMachine}, ""},
		"observed CloudInit":     {"img-old", "", "CloudInit", Result{Pair: Pair{"img-old", "CloudInit"}, ImageSource: FromSnapshot, FormatSource: FromObservation}, ""},
		"observed Ignition":      {"img-old", "", "Ignition", Result{}, FormatNotDeclared},
		"nothing known":          {"img-old", "", "", Result{Pair: Pair{"img-old", "CloudInit"}, ImageSource: FromSnapshot, FormatSource: FromFallback}, ""},
		"no image, observed":     {"", "", "Ignition", Result{Pair: Pair{"", "Ignition"}, ImageSource: Kept, FormatSource: FromObservation}, ""},
		"no image, nothing":      {" \n", "", "", Result{Pair: Pair{"", "CloudInit"}, ImageSource: Kept, FormatSource: FromFallback}, ""},
		"bad image":              {"a\u200bb", "CloudInit", "", Result{}, InvalidImage},
		"bad format":             {"img-old", "cloudinit", "", Result{}, InvalidFormat},
	} {
		t.Run(name, func(t *testing.T) {
			// The image of the Machine and the template do not matter.
			machine := machineWith("img-new", test.machineFormat, test.observed)
			got, fault := Snapshot(test.hostImage, machine)
			require.Equal(t, test.want, got)
			require.Equal(t, test.reason, fault.Reason)
			require.Equal(t, test.reason == "", fault.Message == "")
		})
	}
}

func TestNeedsVersion(t *testing.T) {
	m := machineWith(" ", "CloudInit", "")
	require.False(t, NeedsVersion(m), "no reference")
	m.Spec.ConfigurationRef = &v1alpha3.ConfigurationReference{Name: "edge"}
	require.True(t, NeedsVersion(m))
	m.Spec.Host.Image = "img-m"
	require.False(t, NeedsVersion(m), "an image of its own")
	require.True(t, NeedsVersion(&v1alpha3.Machine{Spec: v1alpha3.MachineSpec{ConfigurationRef: m.Spec.ConfigurationRef}}))
}

// Whitespace around an image never changes the result.
func FuzzMachineIsStableUnderWhitespace(f *testing.F) {
	f.Add("img-m", "img-t", "CloudInit", "", "Ignition", uint8(3))
	f.Add("", "img t", "", "Ignition", "", uint8(0))
	f.Add("\u200b", " ", "", "", "CloudInit", uint8(11))
	spaces := []string{" ", "\t", "\n", "\v", "\f", "\r\n", "\u0085", "\u00a0", "\u2003", "\u2028", "\u202f", "\u3000"}
	f.Fuzz(func(t *testing.T, m, tmpl, format, templateFormat, observed string, pick uint8) {
		before, after := spaces[int(pick)%len(spaces)], spaces[int(pick/12)%len(spaces)]
		plain, plainFault := Machine(machineWith(m, format, observed), versionWith(tmpl, templateFormat))
		wrapped, wrappedFault := Machine(machineWith(before+m+after, format, observed), versionWith(after+tmpl+before, templateFormat))
		require.Equal(t, plain, wrapped)
		require.Equal(t, plainFault, wrappedFault)
		if !plainFault.Found() {
			require.Equal(t, strings.TrimSpace(plain.Image), plain.Image)
			require.Contains(t, v1alpha3.ProvisioningFormats, plain.Format)
		}
	})
}

// A pair that is read back is checked again.
func TestPairFault(t *testing.T) {
	require.Empty(t, PairFault(Pair{Image: "img-a", Format: v1alpha3.CloudInit}))
	require.Empty(t, PairFault(Pair{Format: v1alpha3.CloudInit}), "the current image is kept")
	for pair, want := range map[Pair]Fault{
		{Image: "a\u200bb", Format: v1alpha3.CloudInit}: {InvalidPair, `input.hostImage: "a\u200bb" may not contain the invisible character U+200B`},
		{Image: "img-a", Format: "weird"}:               {InvalidPair, `input.provisioningFormat: unsupported value "weird"`},
		{Image: "img-a", Format: v1alpha3.Ignition}:     {IgnitionNotDeliverable, "generates cloud-init only; the provider was not called"},
		{Format: v1alpha3.Ignition}:                     {IgnitionNotDeliverable, "generates cloud-init only; the provider was not called"},
	} {
		fault := PairFault(pair)
		require.Equal(t, want.Reason, fault.Reason)
		require.Contains(t, fault.Message, want.Message)
	}
}
