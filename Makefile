# Versions are only in go.mod, go.tools.mod and the go.mod files of the modules in test.

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
# Without debug information, linking the many test programs takes a quarter less.
STRIPPED := -ldflags="-s -w"
GENERATED := api manifests/crds manifests/cert-manager/certificates.yaml
# Finds or builds etcd, kube-apiserver and kubectl, and says so.
ASSETS = export KUBEBUILDER_ASSETS; KUBEBUILDER_ASSETS="$$(go -C test/controlplane run . $(ASSETS_FLAGS))"
# The packages whose tests need no control plane.
WITHOUT_CONTROL_PLANE := ./api/... ./certs/... ./cmd/... ./docs/... ./internal/... ./manifests/...

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Use it

.PHONY: demo
demo: ## Show the webhook and the controller at work on a local control plane.
	@$(ASSETS); go build -o bin/demo ./test/demo; exec bin/demo

.PHONY: dev
dev: ## Run a local cluster with the webhook until Ctrl-C. CRDS=DIR uses other CRDs.
	@$(ASSETS); go build -o bin/dev ./test/dev; exec bin/dev -crds "$(CRDS)"

.PHONY: build
build: ## Build the static binaries into bin/.
	$(STATIC) -o bin/ ./cmd/...

.PHONY: image
image: ## Build the container image IMAGE with docker.
	GOOS=linux $(STATIC) -o bin/image/webhook ./cmd/webhook
	docker build --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) -t $(IMAGE) .

.PHONY: release
release: ## Write an install file of IMAGE for each overlay into DIST, with checksums.
	@$(ASSETS); for overlay in crds webhook-only standalone; do mkdir -p $(DIST)/$$overlay; \
		"$$KUBEBUILDER_ASSETS/kubectl" kustomize manifests/$$overlay | sed 's|image: hostformat:latest$$|image: $(IMAGE)|' > $(DIST)/$$overlay/install.yaml; \
	done; cd $(DIST); sha256sum */install.yaml | tee SHA256SUMS

##@ Change it

.PHONY: check
check: ## Build, vet, and run the short tests that need no control plane.
	@echo "check: go build, go vet"; go build ./... && go vet ./...
	@echo "check: go test -short, without a control plane"; env -u KUBECONFIG go test -short $(WITHOUT_CONTROL_PLANE)

.PHONY: test
test: ASSETS_FLAGS := -old-kubectl
test: ## Run all tests, on a local control plane. Needs no cluster.
	@$(ASSETS); echo "go test: about six minutes on 2 cores, most of them for test/e2e"; export CGO_ENABLED=0; env -u KUBECONFIG $(MAKE) --no-print-directory -j3 test-code test-clusters test-monitoring

# The parts of make test, which run side by side.
.PHONY: test-code
test-code: # Run the tests that need no control plane.
	@go test $(STRIPPED) -timeout 40m $(WITHOUT_CONTROL_PLANE)
.PHONY: test-clusters
test-clusters: # Run the tests on local control planes.
	@go test $(STRIPPED) -timeout 40m ./test/...
.PHONY: test-monitoring
test-monitoring: # Run the tests of the alerts and the dashboard.
	@go -C test/monitoring test $(STRIPPED) -timeout 40m ./...

.PHONY: verify
verify: ## Check generated files, modules, format, lint, licences and vulnerabilities.
	@echo "verify: generated files"
	@sum() { find $(GENERATED) -type f -exec sha256sum {} + | sort; }; before="$$(sum)"; \
		$(MAKE) --no-print-directory generate > /dev/null; \
		diff <(echo "$$before") <(sum) || { echo "they were out of date and have been generated again: commit them"; exit 1; }
	@echo "verify: modules are tidy"
	@for module in . test/controlplane test/controlplane/kubectl-1.31 test/certmanager test/monitoring test/performance; do go -C $$module mod tidy -diff; done
	@echo "verify: lint (without a cache, builds the linter first, a few minutes)"
	@$(TOOL) golangci-lint run ./... && for module in controlplane monitoring performance; do go -C test/$$module vet ./...; done
	@echo "verify: dependencies and licences, and docs/dependencies.md"
	@go test -count=1 ./docs
	@echo "verify: known vulnerabilities"
	@if ! curl --silent --fail --head --max-time 20 --output /dev/null https://vuln.go.dev/index/db.json; then \
		echo "skipped: the vulnerability database cannot be reached from here"; \
	else $(TOOL) govulncheck ./...; fi
	@echo "verify: passed"

.PHONY: generate
generate: ## Generate deepcopy functions, CRDs and cert-manager objects.
	@rm -f manifests/crds/unbounded-cloud.io_*.yaml
	go tool controller-gen object paths=./api/...
	go tool controller-gen crd paths=./api/... output:crd:dir=manifests/crds
	go run ./certs/manifest > manifests/cert-manager/certificates.yaml

.PHONY: controlplane
controlplane: ## Download or build etcd, kube-apiserver and kubectl for the tests, once.
	@go -C test/controlplane run . -old-kubectl

##@ Prove it

.PHONY: e2e
e2e: ## Run test/e2e in the cluster of KUBECONFIG or, without one, on a local control plane.
	@$(ASSETS); echo "go test ./test/e2e: about five minutes, or 15 minutes if pods can run"; HOSTFORMAT_E2E_CLUSTER=1 go test -count=1 -timeout 40m ./test/e2e

.PHONY: e2e-kind
e2e-kind: ## Run the tests that need running pods on a kind cluster. Needs docker, kind and kubectl.
	@$(MAKE) --no-print-directory image IMAGE=hostformat:latest
	@$(ASSETS); test/e2e/kind.sh

.PHONY: bench
bench: ## Compare calls and requests with other webhooks (20 minutes). ROUNDS, MACHINES.
	@$(ASSETS); test/performance/bench.sh "$(ROUNDS)" "$(MACHINES)"

.PHONY: proof
proof: ## Run the long rounds whose results are in docs/reliability.md (40 minutes).
	@$(ASSETS); export HOSTFORMAT_PROOF=1; echo "go test: a hundred rounds each, a history of 2,000 operations, and an audit of 100,000 Machines"; \
		env -u KUBECONFIG go test -p 1 -timeout 2h -count=1 -v -run 'TestTwoOperationsTwoProcesses|TestOverlappingSelectors|TestCrashAtRandom|TestNameReplacesAHostOnce|TestHistory|TestAuditAgreesWithTheWebhook|TestAuditOfALargeFleet|TestHangingProvider|TestMembers' ./test/e2e ./internal/plugin ./test/faults \
		| grep -a --line-buffered '^claims:\|^history:\|^hanging:\|^faults:\|^ *---\|^ok\|^FAIL\|Machines of 2 kB\|objects: '

# For CI and for those who maintain the documentation.

.PHONY: reproducible
reproducible: # Build the commit twice, in different folders, and compare the bytes.
	@test/reproducible.sh

.PHONY: every-write
every-write: ASSETS_FLAGS := -old-kubectl
every-write: # Run test/e2e with every write sent to the webhook, and the tests that make test leaves out.
	@$(ASSETS); export HOSTFORMAT_EVERY_WRITE=1; echo "go test: ten minutes on 2 cores"; env -u KUBECONFIG go test -count=1 -timeout 40m ./test/e2e && env -u KUBECONFIG go test -count=1 -timeout 40m -run TestMembers ./test/faults

.PHONY: race
race: # Run all tests but test/e2e, and the webhook in test/faults, with the race detector.
	@$(ASSETS); export HOSTFORMAT_RACE=1 GORACE=halt_on_error=1; echo "go test -race: builds everything again, a few minutes without a cache"; \
		env -u KUBECONFIG go test -race -timeout 20m $$(go list ./... | grep -v /test/e2e)

.PHONY: fuzz
fuzz: # Fuzz reviews, rules, resolution and configs, FUZZTIME each; findings go to testdata.
	@grep -rho --include='*_test.go' '^func Fuzz[A-Za-z]*' internal | cut -d' ' -f2 | sort | while read -r target; do \
		dir=$$(dirname "$$(grep -rl "^func $$target(" internal)"); echo "fuzz: $$target in $$dir, $(FUZZTIME)"; \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "./$$dir"; \
	done

.PHONY: soak
soak: # Write for HOSTFORMAT_SOAK, 5m, over a bad network, and check that memory stays flat.
	@$(ASSETS); HOSTFORMAT_SOAK=$${HOSTFORMAT_SOAK:-5m} go test -timeout 0 -count=1 -v -run TestSoak ./test/faults | grep -a '^faults:\|^soak:\|^---\|^ok\|^FAIL'

.PHONY: scale
scale: # Run 2,000 operations on 10,000 Machines, and print time and peak memory.
	@$(ASSETS); HOSTFORMAT_SCALE=1 go test -timeout 40m -count=1 -v -run TestScale ./test/e2e | grep -a '^scale:\|^---\|^ok\|^FAIL'

.PHONY: pictures
pictures: # Draw the dashboard's panels from a real run into docs/pictures/monitoring/.
	@$(ASSETS); echo "go test ./test/monitoring: about two minutes"; HOSTFORMAT_DRAW=1 env -u KUBECONFIG go -C test/monitoring test -count=1 -v -run TestRun .
