// Command manifest prints the cert-manager objects for the webhook as YAML.
// make generate writes them to manifests/cert-manager/certificates.yaml.
//
// cert-manager's types are imported here only, so that no program that ships
// links them.
package main

import (
	"fmt"
	"log"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func main() {
	fmt.Println("# Made by make generate from certs/manifest.")
	for _, object := range objects() {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			log.Fatal(err)
		}
		delete(content, "status")
		text, err := yaml.Marshal(content)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("---\n%s", text)
	}
}
