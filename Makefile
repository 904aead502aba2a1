# Everything is made here. Versions stand in go.mod, go.tools.mod and the go.mod of
# the modules in test, and nowhere else.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TOOL := go tool -modfile=go.tools.mod
IMAGE ?= hostformat:latest
DIST ?= dist
FUZZTIME ?= 5m
ROUNDS ?= 300
MACHINES ?= 100000
VERSION = $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT = $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
STATIC = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags="-s -w -X main.release=$(VERSION) -X main.commit=$(COMMIT)"
GENERATED := api manifests/crds manifests/cert-manager/certificates.yaml
# Finds or builds etcd, kube-apiserver and kubectl, and says so.
ASSETS := export KUBEBUILDER_ASSETS; KUBEBUILDER_ASSETS="$$(go -C test/controlplane run .)"

.PHONY: help
help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the static binaries into bin/.
	$(STATIC) -o bin/ ./cmd/...

.PHONY: reproducible
reproducible: ## Build what is committed twice, apart, and compare the bytes; a cold build.
	@test/reproducible.sh

.PHONY: image
image: ## Build the container image IMAGE with docker.
	GOOS=linux $(STATIC) -o bin/image/webhook ./cmd/webhook
	docker build --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) -t $(IMAGE) .

.PHONY: generate
generate: ## Make what is generated: deepcopy, CRDs, cert-manager objects.
	@rm -f manifests/crds/unbounded-cloud.io_*.yaml
	go tool controller-gen object paths=./api/...
	go tool controller-gen crd paths=./api/... output:crd:dir=manifests/crds
	go run ./certs/manifest > manifests/cert-manager/certificates.yaml

.PHONY: test
test: ## Run all tests, on a local control plane; needs no cluster of yours.
	@$(ASSETS); echo "go test: eight minutes or so, test/e2e most of them"; env -u KUBECONFIG go test -timeout 40m ./...; env -u KUBECONFIG go -C test/monitoring test -timeout 40m ./...

.PHONY: e2e
e2e: ## Run test/e2e in the cluster that KUBECONFIG names, else on a local control plane.
	@$(ASSETS); echo "go test ./test/e2e: five minutes or so, a quarter of an hour where pods run"; HOSTFORMAT_E2E_CLUSTER=1 go test -count=1 -timeout 40m ./test/e2e

.PHONY: verify
verify: ## Check generated files, modules, format and lint; scan for vulnerabilities.
	@echo "verify: generated files"
	@sum() { find $(GENERATED) -type f -exec sha256sum {} + | sort; }; before="$$(sum)"; \
		$(MAKE) --no-print-directory generate > /dev/null; \
		diff <(echo "$$before") <(sum) || { echo "they were out of date and are made anew: commit them"; exit 1; }
	@echo "verify: modules are tidy"
	@for module in . test/controlplane test/certmanager test/monitoring test/performance; do go -C $$module mod tidy -diff; done
	@echo "verify: lint (builds the linter first, some minutes when cold)"
	@$(TOOL) golangci-lint run ./... && for module in controlplane monitoring performance; do go -C test/$$module vet ./...; done
	@echo "verify: dependencies and their licences, and that docs/dependencies.md knows them"
	@go test -count=1 ./docs
	@echo "verify: known vulnerabilities"
	@if ! curl --silent --fail --head --max-time 20 --output /dev/null https://vuln.go.dev/index/db.json; then \
		echo "skipped: the vulnerability database cannot be reached from here"; \
	else $(TOOL) govulncheck ./...; fi
	@echo "verify: all well"

.PHONY: demo
demo: ## Take the tour: the webhook at work, with real kubectl output.
	@$(ASSETS); go build -o bin/demo ./test/demo; exec bin/demo

.PHONY: dev
dev: ## Run a local cluster with the webhook until Ctrl-C; CRDS=DIR for other CRDs than ours.
	@$(ASSETS); go build -o bin/dev ./test/dev; exec bin/dev -crds "$(CRDS)"

.PHONY: proof
proof: ## Run the long rounds that docs/reliability.md counts (about 40 minutes).
	@$(ASSETS); export HOSTFORMAT_PROOF=1; echo "go test ./test/e2e: a hundred rounds each, and a history of 2,000 operations"; \
		env -u KUBECONFIG go test -timeout 2h -count=1 -v -run 'TestTwoOperationsTwoProcesses|TestOverlappingSelectors|TestCrashAtRandom|TestNameReplacesAHostOnce|TestHistory' ./test/e2e \
		| grep -a --line-buffered '^claims:\|^history:\|^ *---\|^ok\|^FAIL'

.PHONY: scale
scale: ## Run 2,000 operations on 10,000 Machines; prints time and peak memory.
	@$(ASSETS); HOSTFORMAT_SCALE=1 go test -timeout 40m -count=1 -v -run TestScale ./test/e2e | grep -a '^scale:\|^---\|^ok\|^FAIL'

.PHONY: soak
soak: ## Write for HOSTFORMAT_SOAK, 5m, over a bad network; memory must stay flat.
	@$(ASSETS); HOSTFORMAT_SOAK=$${HOSTFORMAT_SOAK:-5m} go test -timeout 0 -count=1 -v -run TestSoak ./test/faults | grep -a '^faults:\|^soak:\|^---\|^ok\|^FAIL'

.PHONY: race
race: ## Run all tests but test/e2e, and the webhook in test/faults, with the race detector.
	@$(ASSETS); export HOSTFORMAT_RACE=1 GORACE=halt_on_error=1; echo "go test -race: builds everything anew, some minutes when cold"; \
		env -u KUBECONFIG go test -race -timeout 20m $$(go list ./... | grep -v /test/e2e)

.PHONY: e2e-kind
e2e-kind: ## Test the installed webhook on a kind cluster; needs docker, kind and kubectl.
	@$(MAKE) --no-print-directory image IMAGE=hostformat:latest
	@$(ASSETS); test/e2e/kind.sh

.PHONY: pictures
pictures: ## Draw the dashboard's panels from a real run into docs/pictures/monitoring/.
	@$(ASSETS); echo "go test ./test/monitoring: two minutes or so"; HOSTFORMAT_DRAW=1 env -u KUBECONFIG go -C test/monitoring test -count=1 -v -run TestRun .

.PHONY: fuzz
fuzz: ## Fuzz reviews, rules, resolution and configs, FUZZTIME each; a find is kept in testdata.
	@grep -rho --include='*_test.go' '^func Fuzz[A-Za-z]*' internal | cut -d' ' -f2 | sort | while read -r target; do \
		dir=$$(dirname "$$(grep -rl "^func $$target(" internal)"); echo "fuzz: $$target in $$dir, $(FUZZTIME)"; \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "./$$dir"; \
	done

.PHONY: bench
bench: ## Measure calls and whole requests beside others (about 20 minutes); ROUNDS, MACHINES.
	@$(ASSETS); test/performance/bench.sh "$(ROUNDS)" "$(MACHINES)"

.PHONY: release
release: ## Write into DIST what installs IMAGE: a file for each way in, and their sums.
	@$(ASSETS); for way in crds webhook-only standalone; do mkdir -p $(DIST)/$$way; \
		"$$KUBEBUILDER_ASSETS/kubectl" kustomize manifests/$$way | sed 's|image: hostformat:latest$$|image: $(IMAGE)|' > $(DIST)/$$way/install.yaml; \
	done; cd $(DIST); sha256sum */install.yaml | tee SHA256SUMS
