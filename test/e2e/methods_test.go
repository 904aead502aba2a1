package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	mergepatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"unbounded-cloud.io/hostformat/test/local"
)

// attempt is one write: the object as it is stored (nil for a create) and as
// it is wanted.
type attempt struct {
	cluster      *local.Cluster
	client       client
	resource     string // with its subresource
	stored, want *unstructured.Unstructured
	dryRun       bool
}

// answer is what the writer is told; an empty err is success.
type answer struct{ err, warnings string }

// method is a way to write.
type method struct {
	name             string
	creates, updates bool
	noStatus         bool // cannot write a subresource
	noDryRun         bool
	process          bool // runs kubectl
	// prepare stores the object that is to be updated, where removing a field
	// takes having written it in the same way. Nil: any way will do.
	prepare func(*testing.T, attempt)
	write   func(*testing.T, attempt) answer
}

const manager = "e2e"

var methods = []method{
	{name: "client-go create", creates: true, write: clientCreate},
	{name: "client-go replace", updates: true, write: clientReplace},
	{name: "client-go merge patch", updates: true, write: func(t *testing.T, a attempt) answer {
		return a.patch(t, types.MergePatchType, a.mergePatch(t), metav1.PatchOptions{})
	}},
	{name: "client-go JSON patch", updates: true, write: func(t *testing.T, a attempt) answer {
		return a.patch(t, types.JSONPatchType, a.jsonPatch(t), metav1.PatchOptions{})
	}},
	{name: "client-go server-side apply", creates: true, updates: true, prepare: prepareServerSide, write: func(t *testing.T, a attempt) answer {
		return a.patch(t, types.ApplyYAMLPatchType, encode(t, a.want.Object), metav1.PatchOptions{FieldManager: manager, Force: new(true)})
	}},
	{process: true, name: "kubectl create", creates: true, write: func(t *testing.T, a attempt) answer {
		return a.kubectl(t, encode(t, a.want.Object), "create", "-f", "-")
	}},
	{process: true, name: "kubectl apply", creates: true, updates: true, noStatus: true, prepare: prepareClientSide, write: func(t *testing.T, a attempt) answer {
		return a.kubectl(t, encode(t, a.want.Object), "apply", "-f", "-")
	}},
	{process: true, name: "kubectl apply --server-side", creates: true, updates: true, prepare: prepareServerSide, write: func(t *testing.T, a attempt) answer {
		return a.kubectl(t, encode(t, a.want.Object), "apply", "--server-side", "--force-conflicts", "--field-manager="+manager, "-f", "-")
	}},
	{process: true, name: "kubectl replace", updates: true, write: func(t *testing.T, a attempt) answer {
		return a.kubectl(t, encode(t, a.read().Object), "replace", "-f", "-")
	}},
	{process: true, name: "kubectl patch --type=merge", updates: true, write: func(t *testing.T, a attempt) answer {
		return a.kubectl(t, nil, "patch", a.plural(), a.want.GetName(), "--type=merge", "-p", string(a.mergePatch(t)))
	}},
	{process: true, name: "kubectl patch --type=json", updates: true, write: func(t *testing.T, a attempt) answer {
		return a.kubectl(t, nil, "patch", a.plural(), a.want.GetName(), "--type=json", "-p", string(a.jsonPatch(t)))
	}},
	{process: true, name: "kubectl edit", updates: true, noDryRun: true, write: kubectlEdit},
}

func clientCreate(t *testing.T, a attempt) answer {
	_, err := a.client.of(a.resource).Create(t.Context(), a.want, metav1.CreateOptions{DryRun: a.dryRunOption()})
	return a.client.answer(err)
}

func clientReplace(t *testing.T, a attempt) answer {
	options := metav1.UpdateOptions{DryRun: a.dryRunOption()}
	var err error
	if a.sub() == "" {
		_, err = a.client.of(a.resource).Update(t.Context(), a.read(), options)
	} else {
		_, err = a.client.of(a.resource).UpdateStatus(t.Context(), a.read(), options)
	}
	return a.client.answer(err)
}

// kubectlEdit has an editor that saves the wanted object over the one it is
// given. On a denial kubectl opens it again, with the reasons as comments, and
// gives up when nothing changes.
func kubectlEdit(t *testing.T, a attempt) answer {
	dir := t.TempDir()
	wanted, opened, editor := filepath.Join(dir, "wanted"), filepath.Join(dir, "opened"), filepath.Join(dir, "editor")
	require.NoError(t, os.WriteFile(wanted, encode(t, a.read().Object), 0o600))
	script := fmt.Sprintf("#!/bin/sh\ncp \"$1\" %s\ncp %s \"$1\"\n", opened, wanted)
	require.NoError(t, os.WriteFile(editor, []byte(script), 0o700))
	result := a.kubectlWith(t, []string{"KUBE_EDITOR=" + editor, "TMPDIR=" + dir}, nil, "edit", a.plural(), a.want.GetName())
	if result.err != "" {
		reasons, err := os.ReadFile(opened)
		require.NoError(t, err)
		result.err += "\n" + string(reasons)
	}
	return result
}

// prepareServerSide and prepareClientSide store a.stored as the methods of
// that name own it.
func prepareServerSide(t *testing.T, a attempt) {
	options := metav1.ApplyOptions{FieldManager: manager}
	body := a.stored.DeepCopy()
	delete(body.Object, "status")
	_, err := a.client.of(a.resource).Apply(t.Context(), body.GetName(), body, options)
	require.NoError(t, err)
	if status, ok := a.stored.Object["status"]; ok {
		body = &unstructured.Unstructured{Object: map[string]any{"status": status, "apiVersion": body.GetAPIVersion(), "kind": body.GetKind()}}
		body.SetName(a.stored.GetName())
		_, err = a.client.of(a.resource).ApplyStatus(t.Context(), body.GetName(), body, options)
		require.NoError(t, err)
	}
}

func prepareClientSide(t *testing.T, a attempt) {
	out, err := a.cluster.Kubectl(t.Context(), encode(t, a.stored.Object), "apply", "-f", "-")
	require.NoError(t, err, out)
	writeStatus(t, a.client, a.resource, a.stored)
}

func (c client) answer(err error) answer {
	result := answer{warnings: strings.Join(c.take(), "\n")}
	if err != nil {
		result.err = err.Error()
	}
	return result
}

func (a attempt) patch(t *testing.T, kind types.PatchType, patch []byte, options metav1.PatchOptions) answer {
	options.DryRun = a.dryRunOption()
	var subresources []string
	if a.sub() != "" {
		subresources = []string{a.sub()}
	}
	_, err := a.client.of(a.resource).Patch(t.Context(), a.want.GetName(), kind, patch, options, subresources...)
	return a.client.answer(err)
}

func (a attempt) kubectl(t *testing.T, stdin []byte, args ...string) answer {
	return a.kubectlWith(t, nil, stdin, args...)
}

var warningLine = regexp.MustCompile(`(?m)^Warning: (.*)\n?`)

func (a attempt) kubectlWith(t *testing.T, env []string, stdin []byte, args ...string) answer {
	if a.sub() != "" {
		args = append(args, "--subresource="+a.sub())
	}
	if a.dryRun {
		args = append(args, "--dry-run=server")
	}
	cmd := a.cluster.Command(t.Context(), args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var result answer
	for _, match := range warningLine.FindAllStringSubmatch(stderr.String(), -1) {
		result.warnings += match[1] + "\n"
	}
	if err != nil {
		result.err = strings.TrimSpace(warningLine.ReplaceAllString(stderr.String(), ""))
		require.NotEmpty(t, result.err)
	}
	return result
}

func (a attempt) dryRunOption() []string {
	if a.dryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func (a attempt) plural() string {
	plural, _, _ := strings.Cut(a.resource, "/")
	return plural
}

func (a attempt) sub() string {
	_, sub, _ := strings.Cut(a.resource, "/")
	return sub
}

// part is the key of an object that the resource writes.
func (a attempt) part() string {
	if a.sub() == "status" {
		return "status"
	}
	return "spec"
}

// read is the wanted object as somebody sends it who has read the stored one.
func (a attempt) read() *unstructured.Unstructured {
	u := a.stored.DeepCopy()
	delete(u.Object, a.part())
	if part, ok := a.want.Object[a.part()]; ok {
		u.Object[a.part()] = part
	}
	return u
}

func (a attempt) mergePatch(t *testing.T) []byte {
	patch, err := mergepatch.CreateMergePatch(a.judged(t, a.stored), a.judged(t, a.want))
	require.NoError(t, err)
	return patch
}

func (a attempt) jsonPatch(t *testing.T) []byte {
	operations, err := jsonpatch.CreatePatch(a.judged(t, a.stored), a.judged(t, a.want))
	require.NoError(t, err)
	return encode(t, operations)
}

func (a attempt) judged(t *testing.T, u *unstructured.Unstructured) []byte {
	part := map[string]any{}
	if value, ok := u.Object[a.part()]; ok {
		part[a.part()] = value
	}
	return encode(t, part)
}

func encode(t testing.TB, value any) []byte {
	t.Helper()
	raw, err := json.Marshal(value)
	require.NoError(t, err)
	return raw
}
