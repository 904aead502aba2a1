#!/usr/bin/env bash
# Runs the tests of this folder on a kind cluster of their own: creates it,
# loads the image, has cert-manager's controllers serve it, installs hostformat
# and deletes all of it again. Logs stay where it fails. It needs docker, kind
# and kubectl; KIND_NODE_IMAGE names the node image where kind's own cannot be
# pulled, KIND_LOAD how long calls are sent at least.
set -euo pipefail
cd "$(dirname "$0")/../.."
cluster=hostformat-e2e
work=$(mktemp -d)
certmanager=
say() { echo "e2e-kind: $*"; }
finish() {
	code=$?
	if [ "$code" != 0 ]; then
		logs=$(mktemp -d)
		kind export logs --name "$cluster" "$logs" > /dev/null 2>&1 || true
		cp "$work"/*.log "$logs" 2> /dev/null || true
		say "failed; logs are kept in $logs"
	fi
	[ -z "$certmanager" ] || kill "$certmanager" 2> /dev/null || true
	kind delete cluster --name "$cluster" > /dev/null 2>&1 || true
	rm -rf "$work"
	exit "$code"
}
trap finish EXIT

say "building cert-manager's controllers from their module: some minutes, once"
go -C test/certmanager build -o "$work/certmanager" .
crds=$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)/deploy/crds

say "creating a cluster"
export KUBECONFIG="$work/kubeconfig"
kind create cluster --name "$cluster" ${KIND_NODE_IMAGE:+--image "$KIND_NODE_IMAGE"} --wait 3m
kind load docker-image --name "$cluster" hostformat:latest

say "installing"
kubectl apply --server-side -f "$crds"
kubectl wait --for=condition=Established --timeout=60s crd --all
kubectl create namespace cert-manager
"$work/certmanager" --kubeconfig "$KUBECONFIG" > "$work/certmanager.log" 2>&1 &
certmanager=$!
kubectl apply --server-side -k manifests/crds
kubectl apply --server-side -k manifests/standalone
kubectl -n hostformat-system wait --for=condition=Available deployment --all --timeout=3m

say "testing"
KIND_KUBECONFIG="$KUBECONFIG" KIND_OVERLAY="$PWD/manifests/standalone" go test -count=1 -timeout 30m -v ./test/kind
