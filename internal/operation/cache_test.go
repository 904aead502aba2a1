package operation

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

func fromYAML(t testing.TB, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	require.NoError(t, err, text)
	object := &unstructured.Unstructured{}
	require.NoError(t, object.UnmarshalJSON(raw), text)
	return object.Object
}

func TestStrip(t *testing.T) {
	const operation = "{apiVersion: unbounded-cloud.io/v1alpha3, kind: MachineOperation, "
	const finishedStub = operation + `
		metadata: {name: a, uid: u, resourceVersion: "7", generation: 2, creationTimestamp: "2026-01-01T00:00:00Z", deletionTimestamp: "2026-01-02T00:00:00Z"},
		spec: {operationKind: HostReplace, ttlSecondsAfterFinished: 60},
		status: {phase: Complete, startedAt: "2026-01-01T00:00:01Z", completedAt: "2026-01-01T00:00:02Z"}}`
	for name, test := range map[string]struct{ was, want string }{
		"a finished operation": {operation + `
			metadata: {name: a, uid: u, resourceVersion: "7", generation: 2, creationTimestamp: "2026-01-01T00:00:00Z", deletionTimestamp: "2026-01-02T00:00:00Z",
				labels: {l: v}, annotations: {a: v}, finalizers: [f], managedFields: [{manager: m}]},
			spec: {operationKind: HostReplace, machineSelector: {matchLabels: {rack: "7"}}, ttlSecondsAfterFinished: 60, parameters: {p: v}},
			status: {phase: Complete, startedAt: "2026-01-01T00:00:01Z", completedAt: "2026-01-01T00:00:02Z", message: m, targets: [{machineRef: a}], conditions: [{type: Frozen}]}}`, finishedStub},
		"its stub": {finishedStub, finishedStub},
		"a failed operation": {operation + "metadata: {name: a}, spec: {operationKind: HostReplace, machineRef: m}, status: {phase: Failed}}",
			operation + "metadata: {name: a}, spec: {operationKind: HostReplace}, status: {phase: Failed}}"},
		"a finished operation of odd sections": {operation + "metadata: text, spec: [1], status: {phase: Failed}}",
			operation + "metadata: {}, spec: {}, status: {phase: Failed}}"},
		"an operation in progress": {operation + `
			metadata: {name: a, labels: {l: v}, managedFields: [{manager: m}], annotations: {kubectl.kubernetes.io/last-applied-configuration: c, a: v}},
			spec: {machineRef: m}, status: {phase: InProgress, targets: [{machineRef: a}]}}`,
			operation + "metadata: {name: a, labels: {l: v}, annotations: {a: v}}, spec: {machineRef: m}, status: {phase: InProgress, targets: [{machineRef: a}]}}"},
		"an operation without a status": {operation + "metadata: {name: a}, spec: {machineRef: m}}", operation + "metadata: {name: a}, spec: {machineRef: m}}"},
		"a status of text":              {operation + "metadata: {name: a}, status: Complete}", operation + "metadata: {name: a}, status: Complete}"},
		"a phase of a list":             {operation + "metadata: {name: a}, status: {phase: [Complete]}}", operation + "metadata: {name: a}, status: {phase: [Complete]}}"},
		"a phase that is not ours":      {operation + "metadata: {name: a}, status: {phase: complete}}", operation + "metadata: {name: a}, status: {phase: complete}}"},
		"metadata of text":              {operation + "metadata: text}", operation + "metadata: text}"},
		"annotations of text": {operation + "metadata: {name: a, managedFields: text, annotations: text}}",
			operation + "metadata: {name: a, annotations: text}}"},
		"another kind that is complete": {"{apiVersion: batch/v1, kind: Job, metadata: {name: a, labels: {l: v}, managedFields: [{manager: m}]}, status: {phase: Complete, x: y}}",
			"{apiVersion: batch/v1, kind: Job, metadata: {name: a, labels: {l: v}}, status: {phase: Complete, x: y}}"},
		"no metadata": {operation + "status: {phase: Pending}}", operation + "status: {phase: Pending}}"},
	} {
		t.Run(name, func(t *testing.T) {
			given := &unstructured.Unstructured{Object: fromYAML(t, test.was)}
			// Other objects may share the maps.
			sharing := &unstructured.Unstructured{Object: given.Object}
			for range 2 {
				stripped, err := strip(given)
				require.NoError(t, err)
				require.Same(t, given, stripped)
				require.Equal(t, fromYAML(t, test.want), given.Object)
				require.Equal(t, fromYAML(t, test.was), sharing.Object)
			}
		})
	}
	typed := &v1alpha3.Machine{ObjectMeta: metav1.ObjectMeta{Name: "a", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}
	for _, odd := range []any{nil, "text", typed, (*unstructured.Unstructured)(nil), &unstructured.Unstructured{}, toolscache.DeletedFinalStateUnknown{Key: "a"}} {
		stripped, err := strip(odd)
		require.NoError(t, err)
		require.Equal(t, odd, stripped)
	}
	require.Empty(t, typed.ManagedFields)
}

// pages is a ListerWatcher that serves objects in pages, as the API server does.
type pages struct {
	objects []*unstructured.Unstructured
	// refuse is called with the number of the request, from 1, and its options.
	refuse   func(int, metav1.ListOptions) error
	requests []metav1.ListOptions
	watch    func() (watch.Interface, error)
}

func (p *pages) List(options metav1.ListOptions) (runtime.Object, error) {
	p.requests = append(p.requests, options)
	if p.refuse != nil {
		if err := p.refuse(len(p.requests), options); err != nil {
			return nil, err
		}
	}
	from, _ := strconv.Atoi(options.Continue)
	to := len(p.objects)
	list := &unstructured.UnstructuredList{Object: map[string]any{}}
	list.SetResourceVersion("7")
	if options.Limit > 0 && from+int(options.Limit) < to {
		to = from + int(options.Limit)
		list.SetContinue(strconv.Itoa(to))
	}
	for _, object := range p.objects[from:to] {
		list.Items = append(list.Items, *object.DeepCopy())
	}
	return list, nil
}

func (p *pages) Watch(metav1.ListOptions) (watch.Interface, error) { return p.watch() }

func (p *pages) IsWatchListSemanticsUnSupported() bool { return true }

func operations(n int) []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	for i := range n {
		op := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"phase": "Complete", "targets": []any{"large"}}}}
		op.SetGroupVersionKind(operationGVK)
		op.SetName(fmt.Sprint("op-", i))
		all = append(all, op)
	}
	return all
}

func TestPaged(t *testing.T) {
	const size = 20
	expired := apierrors.NewResourceExpired("the continue token is too old")
	gone := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonGone}}
	for name, test := range map[string]struct {
		objects int
		refuse  func(int, metav1.ListOptions) error
		want    []string // the continue tokens that are sent
		err     error
	}{
		"none":                 {0, nil, []string{""}, nil},
		"one page":             {20, nil, []string{""}, nil},
		"three pages":          {45, nil, []string{"", "20", "40"}, nil},
		"an expired token":     {45, func(n int, _ metav1.ListOptions) error { return errorIf(n == 3, expired) }, []string{"", "20", "40", "", "20", "40"}, nil},
		"one that is gone":     {45, func(n int, _ metav1.ListOptions) error { return errorIf(n == 2, gone) }, []string{"", "20", "", "20", "40"}, nil},
		"tokens always expire": {45, func(_ int, o metav1.ListOptions) error { return errorIf(o.Continue != "", expired) }, []string{"", "20", "", "20", "", "20"}, expired},
		"another error":        {45, func(n int, _ metav1.ListOptions) error { return errorIf(n == 2, context.DeadlineExceeded) }, []string{"", "20"}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			from := &pages{objects: operations(test.objects), refuse: test.refuse}
			lw := toolscache.ToListerWatcherWithContext(paged(from, size, strip))
			list, err := lw.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "5", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, LabelSelector: "l=v"})
			require.Equal(t, test.err, err)
			var tokens []string
			for _, request := range from.requests {
				require.Equal(t, metav1.ListOptions{Limit: size, Continue: request.Continue, LabelSelector: "l=v"}, request)
				tokens = append(tokens, request.Continue)
			}
			require.Equal(t, test.want, tokens)
			if err != nil {
				return
			}
			metadata, err := meta.ListAccessor(list)
			require.NoError(t, err)
			require.Equal(t, "7", metadata.GetResourceVersion())
			require.Empty(t, metadata.GetContinue(), "whoever listed would ask for more")
			var names []string
			require.NoError(t, meta.EachListItem(list, func(item runtime.Object) error {
				op := item.(*unstructured.Unstructured)
				require.NotContains(t, op.Object["status"], "targets")
				names = append(names, op.GetName())
				return nil
			}))
			var want []string
			for _, op := range from.objects {
				want = append(want, op.GetName())
			}
			require.Equal(t, want, names)
		})
	}
}

func errorIf(fails bool, err error) error {
	if fails {
		return err
	}
	return nil
}

// A page is stripped before the next is requested.
func TestPagedHoldsOnePage(t *testing.T) {
	stripped := 0
	from := &pages{objects: operations(45)}
	from.refuse = func(n int, _ metav1.ListOptions) error {
		require.Equal(t, (n-1)*operationsPerPage, stripped)
		return nil
	}
	_, err := toolscache.ToListerWatcherWithContext(paged(from, operationsPerPage, func(object any) (any, error) {
		stripped++
		return strip(object)
	})).ListWithContext(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, 45, stripped)
}

// With the options for the manager, operations are listed in small pages and other
// objects in larger ones, and only the kept fields are stored.
func TestCacheOptions(t *testing.T) {
	for kind, size := range map[string]int64{"MachineOperation": operationsPerPage, "MachineConfiguration": objectsPerPage} {
		from := &pages{objects: operations(45), watch: func() (watch.Interface, error) { return watch.NewFake(), nil }}
		example := &unstructured.Unstructured{}
		example.SetGroupVersionKind(v1alpha3.GroupVersion.WithKind(kind))
		options := CacheOptions()
		informer := options.NewInformer(from, example, 0, toolscache.Indexers{})
		require.NoError(t, informer.SetTransform(options.DefaultTransform))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			informer.RunWithContext(ctx)
			close(done)
		}()
		require.True(t, toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced))
		stop()
		<-done
		require.False(t, slices.ContainsFunc(from.requests, func(request metav1.ListOptions) bool { return request.Limit != size }), kind)
		require.Len(t, informer.GetStore().List(), 45)
		for _, stored := range informer.GetStore().List() {
			require.Equal(t, map[string]any{"phase": "Complete"}, stored.(*unstructured.Unstructured).Object["status"])
		}
	}
}
