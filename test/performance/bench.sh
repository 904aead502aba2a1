#!/usr/bin/env bash
# Runs all benchmarks: ROUNDS of requests, and up to MACHINES stored. What
# docs/performance.md tells is left in docs/performance.txt and docs/pictures/performance.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=$1 machines=$2
mkdir -p bin
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
go -C test/performance build -o ../../bin/performance .
benchstat() { go -C test/performance tool benchstat "$@"; }

echo "bench: calls in process, three minutes or so" >&2
go test -run '^$' -bench . -count 6 -cpu 1 ./internal/admission | grep -a '^[a-z]*: \|^Benchmark.*op' > "$raw/calls"
echo "bench: requests, a quarter of an hour or so" >&2
bin/performance -pictures docs/pictures/performance -rounds "$rounds" -machines "$machines" > "$raw/requests" 2> >(tee "$raw/progress" >&2)
{
	echo "Made by make bench ROUNDS=$rounds MACHINES=$machines on $(date +%F)."
	echo "$(nproc) cores, $(awk '/MemTotal/ { printf "%d GiB", $2 / 1048576 }' /proc/meminfo); $(go version | cut -d' ' -f3)"
	printf '\n# Targets\n\n'
	grep ' of at most ' "$raw/progress"
	printf '\n# A call, beside one to a webhook that does nothing\n\n'
	benchstat -filter '.name:Call' -row /write -col /handler "$raw/calls"
	printf '\n# A trimming, beside the typed defaulter\n\n'
	benchstat -filter '.name:Trim' -row /bytes -col '/handler@(idle hostformat typed)' "$raw/calls"
	printf '\n# A status judged, beside its objects decoded\n\n'
	benchstat -filter '.name:Judge' -row /targets -col /step "$raw/calls"
	printf '\n# What the conditions cost the API server\n\n'
	benchstat -filter '.name:Conditions' -row /write -col /direction "$raw/calls"
	for name in Request Targets Size Stored Throughput Tail Resident Peak Start; do
		printf '\n# %s\n\n' "$name"
		benchstat -filter ".name:$name" -row '/write /targets /bytes /machines /clients /until' -col '/guard@(none policy idle every hostformat)' "$raw/requests"
	done
} > docs/performance.txt
cat docs/performance.txt
