package plugin

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// manifests calls visit for the objects of our kinds in files, folders or standard
// input, with the source of each. A kind may be misspelt in case or number. It skips
// other objects.
func manifests(flags *genericclioptions.ConfigFlags, in io.Reader, files resource.FilenameOptions, visit func(o object, source string) error) error {
	builder := resource.NewBuilder(flags).Unstructured().Local().ContinueOnError()
	if slices.Contains(files.Filenames, "-") {
		builder = builder.Stream(in, "standard input")
		files.Filenames = slices.DeleteFunc(slices.Clone(files.Filenames), func(name string) bool { return name == "-" })
	}
	if len(files.Filenames) > 0 {
		builder = builder.FilenameParam(false, &files)
	}
	found := builder.Flatten().Do()
	if err := found.Err(); err != nil {
		return fmt.Errorf("%w; -f takes a file, a folder with *.yaml, *.yml or *.json (and -R its subfolders), or - for standard input", err)
	}
	return found.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		u, ok := info.Object.(*unstructured.Unstructured)
		if !ok || u.GetAPIVersion() != v1alpha3.GroupVersion.String() {
			return nil
		}
		if meantKind(u.GetKind()) == "" {
			return nil // other kinds of our group have no rules
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
