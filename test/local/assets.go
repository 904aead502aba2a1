package local

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Assets returns the folder that contains the programs of a control plane:
// KUBEBUILDER_ASSETS if it is set, otherwise the folder that test/controlplane has
// in its cache. It sets the variable for this process and those that it starts.
func Assets(ctx context.Context) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "go", "-C", filepath.Join(root, "test", "controlplane"), "run", ".", "-cached").Output()
	if err != nil {
		return "", errors.New("there is no local control plane yet: run make controlplane, which downloads or builds it once, or set KUBEBUILDER_ASSETS")
	}
	dir := strings.TrimSpace(string(out))
	return dir, os.Setenv("KUBEBUILDER_ASSETS", dir)
}

// OldKubectl returns the folder that contains the oldest kubectl that the
// documentation promises, or nothing if it has not been built. Assets has to be
// called before.
func OldKubectl() string {
	found, _ := filepath.Glob(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl-v*", "kubectl"))
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}
