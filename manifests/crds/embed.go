// Package crds holds the CRDs of this project, for tools that check manifests
// without a cluster.
package crds

import "embed"

// Files are the CRDs, one a file.
//
//go:embed unbounded-cloud.io_*.yaml
var Files embed.FS
