// Command dev runs a local control plane with webhook and controllers until it is
// interrupted, and writes a kubeconfig for it. See make dev.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"unbounded-cloud.io/hostformat/test/local"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	crds := flag.String("crds", "", "folder of CRDs to install; empty for those of this project")
	dir := flag.String("dir", ".dev", "folder to write the kubeconfig to")
	flag.Parse()
	if err := run(ctx, *crds, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, crds, dir string) (err error) {
	cluster, err := local.Start(ctx, local.Options{CRDs: crds, Controllers: "*,machineconfiguration", Log: os.Stderr})
	if err != nil {
		if ctx.Err() != nil {
			return nil // interrupted while starting
		}
		return err
	}
	defer func() {
		fmt.Fprintln(os.Stderr, "dev: stopping")
		if stopErr := cluster.Stop(); err == nil {
			err = stopErr
		}
	}()

	content, err := os.ReadFile(cluster.Kubeconfig)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	kubeconfig, err := filepath.Abs(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(kubeconfig, content, 0o600); err != nil {
		return err
	}
	defer os.Remove(kubeconfig)
	fmt.Printf("ready: export KUBECONFIG=%s\n", kubeconfig)

	select {
	case <-ctx.Done():
		return nil
	case <-cluster.Done():
		return fmt.Errorf("the webhook ended; its last lines above say why")
	}
}
