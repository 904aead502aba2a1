package operation

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

const (
	// operationsPerPage is small because one MachineOperation can have 1.5 MB, the
	// limit of etcd, and takes ten times that while it is decoded.
	operationsPerPage = 5
	objectsPerPage    = 500
	// maxLists is how often a list is started before its error is returned.
	maxLists = 3
)

// CacheOptions returns the options for the cache of a manager that runs the
// Reconciler. They bound the memory that a long history of operations takes:
// the cache holds a stub of each finished operation, and objects are reduced before
// the next ones are read. This matters at the start, when the API server sends all
// of them.
func CacheOptions() cache.Options {
	return cache.Options{
		DefaultTransform: strip,
		NewInformer: func(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			size := int64(objectsPerPage)
			if example.GetObjectKind().GroupVersionKind() == operationGVK {
				size = operationsPerPage
			}
			return toolscache.NewSharedIndexInformer(paged(lw, size, strip), example, resync, indexers)
		},
	}
}

var operationGVK = v1alpha3.GroupVersion.WithKind("MachineOperation")

// keptOfFinished are the fields of a finished operation that the controller
// reads from the cache. It reads all other fields live.
var keptOfFinished = map[string][]string{
	"metadata": {"name", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"},
	"spec":     {"operationKind", "ttlSecondsAfterFinished"},
	"status":   {"phase", "startedAt", "completedAt"},
}

// strip reduces an object to the fields that are cached. It is a
// toolscache.TransformFunc: objects may pass through it more than once. It
// replaces the maps that it changes, since other objects may share them.
func strip(object any) (any, error) {
	switch object := object.(type) {
	case *unstructured.Unstructured:
		if object == nil || object.Object == nil {
			break
		}
		phase := v1alpha3.OperationPhase(text(object.Object, "status", "phase"))
		if phase.Finished() && object.GroupVersionKind() == operationGVK {
			object.Object = stub(object.Object)
		} else {
			object.Object = withoutBookkeeping(object.Object)
		}
	case metav1.ObjectMetaAccessor:
		if metadata := object.GetObjectMeta(); metadata != nil {
			metadata.SetManagedFields(nil)
		}
	}
	return object, nil
}

// stub returns the fields of a finished operation that are kept.
func stub(operation map[string]any) map[string]any {
	kept := map[string]any{"apiVersion": operation["apiVersion"], "kind": operation["kind"]}
	for section, fields := range keptOfFinished {
		values, _ := operation[section].(map[string]any)
		keptValues := make(map[string]any, len(fields))
		for _, field := range fields {
			if value, found := values[field]; found {
				keptValues[field] = value
			}
		}
		kept[section] = keptValues
	}
	return kept
}

// withoutBookkeeping returns an object without managedFields, which often are
// the larger half of it, and without the copy of it that kubectl apply keeps in
// an annotation.
func withoutBookkeeping(object map[string]any) map[string]any {
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return object
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	_, managed := metadata["managedFields"]
	_, applied := annotations[corev1.LastAppliedConfigAnnotation]
	if !managed && !applied {
		return object
	}
	object, metadata = maps.Clone(object), maps.Clone(metadata)
	object["metadata"] = metadata
	delete(metadata, "managedFields")
	if applied {
		annotations = maps.Clone(annotations)
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		metadata["annotations"] = annotations
	}
	return object
}

// paged returns a ListerWatcher that lists in pages and strips each page before
// it requests the next.
//
// A reflector prefers to stream the initial objects through a watch, and then
// strips each as it arrives. It lists where the API server does not stream:
// before Kubernetes 1.32, in 1.33, and where the feature gate WatchList is off.
func paged(lw toolscache.ListerWatcher, size int64, strip toolscache.TransformFunc) toolscache.ListerWatcher {
	from := toolscache.ToListerWatcherWithContext(lw)
	listWatch := &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			for lists := 1; ; lists++ {
				list, err := listPages(ctx, from, options, size, strip)
				// The API server also offers to continue an expired list at a
				// newer state. Objects deleted in between would stay in the
				// cache until the next list, so start over instead.
				if lists < maxLists && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
					continue
				}
				return list, err
			}
		},
		WatchFuncWithContext: from.WatchWithContext,
	}
	// This passes on whether lw can stream: fakes cannot.
	return toolscache.ToListWatcherWithWatchListSemantics(listWatch, lw)
}

// listPages lists all objects once, at one resourceVersion.
func listPages(ctx context.Context, from toolscache.ListerWithContext, options metav1.ListOptions, size int64, strip toolscache.TransformFunc) (runtime.Object, error) {
	// With any other resourceVersion, the API server answers from its watch
	// cache and may ignore the limit.
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	options.Limit, options.Continue = size, ""
	list := &internalversion.List{}
	for {
		page, err := from.ListWithContext(ctx, options)
		if err != nil {
			return nil, err
		}
		metadata, err := meta.ListAccessor(page)
		if err != nil {
			return nil, err
		}
		// WithAlloc, since a pointer into the page would keep all of it.
		err = meta.EachListItemWithAlloc(page, func(item runtime.Object) error {
			stripped, err := strip(item)
			if err != nil {
				return err
			}
			object, ok := stripped.(runtime.Object)
			if !ok {
				return fmt.Errorf("%T cannot be listed", stripped)
			}
			list.Items = append(list.Items, object)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if list.ResourceVersion == "" {
			list.ResourceVersion = metadata.GetResourceVersion()
		}
		if options.Continue = metadata.GetContinue(); options.Continue == "" {
			return list, nil
		}
	}
}
