package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// InstallWebhook applies the webhook configurations and waits until writes are
// trimmed and judged.
func (c *Cluster) InstallWebhook(ctx context.Context) error {
	mutating, validating, err := c.WebhookConfigurations()
	if err != nil {
		return err
	}
	var manifest []byte
	for _, object := range []any{mutating, validating} {
		text, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		manifest = append(append(manifest, "---\n"...), text...)
	}
	if out, err := c.Kubectl(ctx, manifest, "apply", "--server-side", "--field-manager=hostformat", "-f", "-"); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return c.waitForGuard(ctx, true)
}

// RemoveWebhook deletes the webhook configurations and waits until no write is
// sent to the webhook any more.
func (c *Cluster) RemoveWebhook(ctx context.Context) error {
	out, err := c.Kubectl(ctx, nil, "delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "hostformat")
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return c.waitForGuard(ctx, false)
}

// waitForGuard waits until the API server applies a change to the webhook
// configurations, a moment after it is stored.
func (c *Cluster) waitForGuard(ctx context.Context, wanted bool) error {
	config := rest.CopyConfig(c.Config)
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	create := func(ctx context.Context, image string) (string, error) {
		stored, err := client.Resource(v1alpha3.GroupVersion.WithResource("machines")).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha3.GroupVersion.String(), "kind": "Machine",
			"metadata": map[string]any{"name": "hostformat-probe"},
			"spec":     map[string]any{"host": map[string]any{"image": image}},
		}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return "", err
		}
		image, _, err = unstructured.NestedString(stored.Object, "spec", "host", "image")
		return image, err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, pollInterval, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		trimmed, trimErr := create(ctx, " probe ")
		_, judgeErr := create(ctx, "pro\u200bbe")
		last = errors.Join(trimErr, judgeErr)
		if wanted {
			return trimmed == "probe" && apierrors.IsInvalid(judgeErr), nil
		}
		return trimmed == " probe " && judgeErr == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until writes are guarded (%t): %w; the last try: %w", wanted, err, last)
	}
	return nil
}
