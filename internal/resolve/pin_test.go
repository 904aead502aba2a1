package resolve

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

func TestPinFault(t *testing.T) {
	machine := func(uid, provider, id string) *v1alpha3.Machine {
		m := &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
		m.Spec.Host = &v1alpha3.MachineHost{External: &v1alpha3.ExternalHost{Provider: provider, ProviderID: id}}
		return m
	}
	deleting := machine("u-1", "p", "c-1")
	deleting.DeletionTimestamp = &metav1.Time{}
	pinned := v1alpha3.OperationInput{MachineUID: "u-1", Provider: "p", ProviderID: "c-1"}
	pinsNothing := v1alpha3.OperationInput{HostImage: "img-a"}
	for name, test := range map[string]struct {
		input   v1alpha3.OperationInput
		machine *v1alpha3.Machine
		reason  Reason
		words   string
	}{
		"the same":              {pinned, machine("u-1", "p", "c-1"), "", ""},
		"gone":                  {pinned, nil, MachineNotFound, "does not exist any more"},
		"going":                 {pinned, deleting, MachineDeleting, "is being deleted"},
		"another Machine":       {pinned, machine("u-2", "p", "c-1"), MachineReplaced, "with UID u-1, and this one has u-2"},
		"another provider":      {pinned, machine("u-1", "q", "c-1"), ProviderChanged, `for provider "p", and the Machine now says "q"`},
		"another chassis":       {pinned, machine("u-1", "p", "c-2"), ProviderChanged, `for providerID "c-1", and the Machine now says "c-2"`},
		"no chassis":            {pinned, machine("u-1", "p", ""), ProviderChanged, `now says ""`},
		"no provider at all":    {pinned, &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{UID: "u-1"}}, ProviderChanged, `now says ""`},
		"nothing pinned":        {pinsNothing, machine("u-2", "q", ""), "", ""},
		"nothing pinned, going": {pinsNothing, deleting, MachineDeleting, "is being deleted"},
		"nothing pinned, gone":  {pinsNothing, nil, MachineNotFound, "does not exist any more"},
	} {
		t.Run(name, func(t *testing.T) {
			reason, message := PinFault(test.input, test.machine)
			require.Equal(t, test.reason, reason)
			require.Equal(t, test.reason == "", message == "")
			require.Contains(t, message, test.words)
		})
	}
}
