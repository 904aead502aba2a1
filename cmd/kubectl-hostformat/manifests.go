package main

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// manifests hands over the objects of our kinds that files, folders or
// standard input hold, and where each stands. Others are passed over.
func manifests(flags *genericclioptions.ConfigFlags, files resource.FilenameOptions, visit func(o object, source string) error) error {
	result := resource.NewBuilder(flags).Unstructured().Local().ContinueOnError().
		FilenameParam(false, &files).Flatten().Do()
	return result.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		u, ok := info.Object.(*unstructured.Unstructured)
		if !ok || u.GetAPIVersion() != v1alpha3.GroupVersion.String() {
			return nil
		}
		if _, err := plural(u.GetKind()); err != nil {
			return nil //nolint:nilerr // another kind of our group is not ours to judge
		}
		raw, err := json.Marshal(u.Object)
		if err != nil {
			return fmt.Errorf("%s: %w", info.Source, err)
		}
		o, err := parse(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", info.Source, err)
		}
		return visit(o, info.Source)
	})
}
