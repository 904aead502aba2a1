package versions

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// pages is a reader that returns a list in pages with given content. A real API server
// does not page in a chosen order.
type pages struct {
	client.Reader
	pages [][]v1alpha3.MachineConfigurationVersion
	lists int
	err   error
}

func (p *pages) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if p.err != nil {
		return p.err
	}
	for _, page := range p.pages {
		for _, version := range page {
			if version.Name == key.Name {
				version.DeepCopyInto(object.(*v1alpha3.MachineConfigurationVersion))
				return nil
			}
		}
	}
	return apierrors.NewNotFound(v1alpha3.GroupVersion.WithResource("machineconfigurationversions").GroupResource(), key.Name)
}

func (p *pages) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if p.err != nil {
		return p.err
	}
	p.lists++
	var options client.ListOptions
	options.ApplyOptions(opts)
	page, _ := strconv.Atoi(options.Continue)
	versions := list.(*v1alpha3.MachineConfigurationVersionList)
	versions.Items, versions.Continue = nil, ""
	for _, version := range p.pages[page] {
		if options.LabelSelector.Matches(labels.Set(version.Labels)) {
			versions.Items = append(versions.Items, version)
		}
	}
	if page+1 < len(p.pages) {
		versions.Continue = strconv.Itoa(page + 1)
	}
	return nil
}

func numbered(configuration string, number int32, tweaks ...func(*v1alpha3.MachineConfigurationVersion)) v1alpha3.MachineConfigurationVersion {
	v := v1alpha3.MachineConfigurationVersion{ObjectMeta: metav1.ObjectMeta{
		Name:   configuration + "-v" + strconv.Itoa(int(number)),
		Labels: map[string]string{v1alpha3.ConfigurationLabel: configuration},
	}}
	v.Spec.Version = number
	for _, tweak := range tweaks {
		tweak(&v)
	}
	return v
}

func deleting(v *v1alpha3.MachineConfigurationVersion) {
	v.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_700_000_000, 0)}
}

func newest(v *v1alpha3.MachineConfigurationVersion) {
	v.CreationTimestamp = metav1.Time{Time: time.Unix(2_000_000_000, 0)}
}

func TestRead(t *testing.T) {
	type list = [][]v1alpha3.MachineConfigurationVersion
	v := numbered
	for name, test := range map[string]struct {
		pages  list
		pin    int32 // 0: not pinned
		want   string
		reason resolve.Reason
		words  string
	}{
		"numbers, not text: 10 2 9":        {pages: list{{v("edge-pool", 10), v("edge-pool", 2), v("edge-pool", 9)}}, want: "edge-pool-v10"},
		"numbers, not text: 9 10 2":        {pages: list{{v("edge-pool", 9), v("edge-pool", 10), v("edge-pool", 2)}}, want: "edge-pool-v10"},
		"numbers, not text: 2 9 10":        {pages: list{{v("edge-pool", 2), v("edge-pool", 9), v("edge-pool", 10)}}, want: "edge-pool-v10"},
		"a later timestamp is not a later": {pages: list{{v("edge-pool", 9, newest), v("edge-pool", 10)}}, want: "edge-pool-v10"},
		"another configuration's versions": {pages: list{{v("edge-pool", 10), v("edge-pool-v1", 11), v("edge", 12)}}, want: "edge-pool-v10"},
		"deleted ones are skipped":         {pages: list{{v("edge-pool", 11, deleting), v("edge-pool", 10)}}, want: "edge-pool-v10"},
		"all pages are read":               {pages: list{{v("edge-pool", 9)}, {v("edge-pool", 10)}, {v("edge-pool", 2)}}, want: "edge-pool-v10"},
		"the highest number there is":      {pages: list{{v("edge-pool", math.MaxInt32), v("edge-pool", 1)}}, want: "edge-pool-v2147483647"},
		"equal numbers": {pages: list{{
			v("edge-pool", 3, func(v *v1alpha3.MachineConfigurationVersion) { v.Name = "z" }), v("edge-pool", 3),
		}}, want: "edge-pool-v3"},
		"no versions":               {pages: list{{}}, reason: resolve.VersionNotFound, words: `MachineConfiguration "edge-pool"`},
		"only versions of a prefix": {pages: list{{v("edge", 2)}}, reason: resolve.VersionNotFound, words: `MachineConfiguration "edge-pool"`},
		"only a deleted one":        {pages: list{{v("edge-pool", 1, deleting)}}, reason: resolve.VersionNotFound, words: "has no version"},

		"pinned":                 {pages: list{{v("edge-pool", 2), v("edge-pool", 3)}}, pin: 2, want: "edge-pool-v2"},
		"pinned and missing":     {pages: list{{v("edge-pool", 1), v("edge-pool", 3)}}, pin: 7, reason: resolve.VersionNotFound, words: `"edge-pool-v7"`},
		"pinned and deleted":     {pages: list{{v("edge-pool", 2, deleting)}}, pin: 2, reason: resolve.VersionDeleting, words: `"edge-pool-v2"`},
		"pinned, another's":      {pages: list{{v("edge-pool", 2, func(v *v1alpha3.MachineConfigurationVersion) { v.Labels[v1alpha3.ConfigurationLabel] = "edge" })}}, pin: 2, reason: resolve.VersionMismatch, words: `belongs to MachineConfiguration "edge"`},
		"pinned, without label":  {pages: list{{v("edge-pool", 2, func(v *v1alpha3.MachineConfigurationVersion) { v.Labels = nil })}}, pin: 2, reason: resolve.VersionMismatch, words: `belongs to MachineConfiguration ""`},
		"pinned, another number": {pages: list{{v("edge-pool", 2, func(v *v1alpha3.MachineConfigurationVersion) { v.Spec.Version = 3 })}}, pin: 2, reason: resolve.VersionMismatch, words: "has spec.version 3, not 2"},
	} {
		t.Run(name, func(t *testing.T) {
			reader := &pages{pages: test.pages}
			ref := v1alpha3.ConfigurationReference{Name: "edge-pool"}
			if test.pin != 0 {
				ref.Version = &test.pin
			}
			got, fault, err := Read(t.Context(), reader, ref)
			require.NoError(t, err)
			require.Equal(t, test.reason, fault.Reason)
			if test.reason != "" {
				require.Contains(t, fault.Message, test.words)
				require.Nil(t, got)
				return
			}
			require.Equal(t, test.want, got.Name)
			if test.pin == 0 {
				require.Equal(t, len(test.pages), reader.lists, "each page is read once")
			}
		})
	}
}

// A name that no object can have is a fault, not a failed read.
func TestReadOfAnImpossibleName(t *testing.T) {
	pin := int32(1)
	for _, name := range []string{"", "edge/pool", strings.Repeat("x", 64), "a b"} {
		for _, version := range []*int32{nil, &pin} {
			_, fault, err := Read(t.Context(), &pages{err: errors.New("not to be read")}, v1alpha3.ConfigurationReference{Name: name, Version: version})
			require.NoError(t, err)
			require.Equal(t, resolve.VersionNotFound, fault.Reason)
		}
	}
}

// A failed read is never mistaken for a missing version.
func TestReadFailure(t *testing.T) {
	failure := apierrors.NewInternalError(errors.New("boom"))
	pin := int32(2)
	for _, ref := range []v1alpha3.ConfigurationReference{{Name: "edge"}, {Name: "edge", Version: &pin}} {
		got, fault, err := Read(t.Context(), &pages{err: failure}, ref)
		require.ErrorIs(t, err, failure)
		require.ErrorContains(t, err, `"edge`)
		require.Empty(t, fault)
		require.Nil(t, got)
	}
}
