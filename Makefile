# Everything is made here. Versions stand in go.mod, go.tools.mod and
# test/controlplane/go.mod, and nowhere else.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TOOL := go tool -modfile=go.tools.mod
# Finds or builds etcd, kube-apiserver and kubectl, and says so.
ASSETS = KUBEBUILDER_ASSETS="$$(go -C test/controlplane run .)"

.PHONY: help
help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the static binaries into bin/.
	CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o bin/ ./cmd/...

.PHONY: generate
generate: ## Make what is generated: deepcopy, CRDs, cert-manager objects.
	rm -f manifests/crds/*.yaml
	go tool controller-gen object paths=./api/...
	go tool controller-gen crd paths=./api/... output:crd:dir=manifests/crds
	go run ./certs/manifest > manifests/cert-manager.yaml

.PHONY: test
test: ## Run all tests that need no cluster of yours: on a local control plane.
	@$(ASSETS) && export KUBEBUILDER_ASSETS && unset KUBECONFIG && \
		echo "testing" && go test -timeout 20m ./...

.PHONY: verify
verify: ## Check generated files, modules, formatting and lint; scan for vulnerabilities.
	@./verify.sh

.PHONY: demo
demo: ## Take the tour: the webhook at work, with real kubectl output.
	@$(ASSETS) && export KUBEBUILDER_ASSETS && mkdir -p bin && go build -o bin/demo ./test/demo && exec bin/demo

.PHONY: dev
dev: ## Run a local cluster with the webhook until Ctrl-C. CRDS=DIR installs those CRDs instead of ours.
	@$(ASSETS) && export KUBEBUILDER_ASSETS && mkdir -p bin && go build -o bin/dev ./test/dev && exec bin/dev -crds "$(CRDS)"
