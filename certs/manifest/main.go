// Command manifest prints the cert-manager objects of package certs as YAML;
// make generate writes them to manifests/cert-manager/certificates.yaml.
package main

import (
	"fmt"
	"log"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/certs"
)

func main() {
	fmt.Println("# Made by make generate from package certs.")
	for _, object := range certs.CertManager() {
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
