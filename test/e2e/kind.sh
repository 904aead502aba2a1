#!/usr/bin/env bash
# Runs the tests of this folder on a kind cluster of their own: creates it,
# loads the image, installs cert-manager and hostformat, and deletes all of it
# again. Logs stay where it fails. It needs docker, kind and kubectl;
# KIND_NODE_IMAGE names the node image where kind's own cannot be pulled.
# cert-manager's controllers are built from their module: no image is pulled.
set -euo pipefail
cd "$(dirname "$0")/../.."
cluster=hostformat-e2e
work=$(mktemp -d)
say() { echo "e2e-kind: $*"; }
finish() {
	code=$?
	if [ "$code" != 0 ]; then
		logs=$(mktemp -d)
		kind export logs --name "$cluster" "$logs" > /dev/null 2>&1 || true
		say "failed; logs are kept in $logs"
	fi
	kind delete cluster --name "$cluster" > /dev/null 2>&1 || true
	rm -rf "$work"
	exit "$code"
}
trap finish EXIT

say "building cert-manager's controllers from their module: some minutes, once"
CGO_ENABLED=0 GOOS=linux go -C test/certmanager build -trimpath -ldflags="-s -w" -o "$work/certmanager" .
built=$(docker build --tag certmanager:test --file test/certmanager/Dockerfile "$work" 2>&1) || { echo "$built" >&2; exit 1; }
crds=$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)/deploy/crds

say "creating a cluster"
export KUBECONFIG="$work/kubeconfig"
kind create cluster --name "$cluster" ${KIND_NODE_IMAGE:+--image "$KIND_NODE_IMAGE"} --wait 3m
kind load docker-image --name "$cluster" hostformat:latest certmanager:test

say "installing cert-manager"
kubectl apply --server-side -f "$crds"
kubectl apply -f test/certmanager/deployment.yaml
kubectl -n cert-manager wait deployment --all --for=condition=Available --timeout=2m

say "installing hostformat as README.md says, with the controller and the provider Simulated"
install=$(awk '/^## /{ at = $0 == "## Install it" } at && /^```$/{ exit } on; at && /^```sh$/{ on = 1 }' README.md)
grep -q 'kubectl apply -k manifests/webhook-only ' <<< "$install" || { say "README.md does not show the install where it did"; exit 1; }
bash -euxo pipefail -c "${install/manifests\/webhook-only/test/e2e/testdata/trial}"

say "testing: a quarter of an hour or so"
HOSTFORMAT_E2E_CLUSTER=1 go test -count=1 -timeout 40m -v ./test/e2e "$@"
