#!/usr/bin/env bash
# Builds the programs twice out of what is committed, each time in another
# folder, and fails unless they are the same to the byte. The first build has
# what a developer has: a clone, and the build cache. The second has what anyone
# has who checks a release: an archive, the version by name, an empty cache, and
# other habits. SECOND holds more arguments for make in the second.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -z "$(git status --porcelain)" ] || echo "reproducible: what is not committed is left out"
work="$(mktemp -d)"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
first="$work/first" second="$work/a much/longer/path/second"
version="$(git describe --tags --always)" commit="$(git rev-parse HEAD)"

git clone --quiet --no-hardlinks . "$first"
mkdir -p "$second"
git archive HEAD | tar -x -C "$second"

echo "reproducible: $version in a clone"
make --no-print-directory -C "$first" build VERSION="$version" COMMIT="$commit"
echo "reproducible: $version in an archive, with an empty cache (some minutes)"
(
	umask 077
	export TZ=Pacific/Auckland LC_ALL=C USER=somebody GOCACHE="$work/cache" GOTMPDIR="$work"
	make --no-print-directory -C "$second" build VERSION="$version" COMMIT="$commit" ${SECOND:-}
)

text() { grep -aoE '[[:print:]]{6,}' "$1" | sort -u; }

differ=()
for program in "$first"/bin/*; do
	name="$(basename "$program")"
	cmp -s "$program" "$second/bin/$name" || differ+=("$name")
done
for name in "${differ[@]}"; do
	echo "reproducible: $name differs; what each was built with:"
	if diff <(cd "$first" && go version -m "bin/$name") <(cd "$second" && go version -m "bin/$name"); then
		# Go records no -ldflags beside -trimpath, which would tell paths.
		echo "the same settings, as far as Go records them; so it is -ldflags, that is, version or commit, or the code. Lines of text in one only:"
		diff <(text "$first/bin/$name") <(text "$second/bin/$name") | cut -c1-200 | sed -n 1,10p || true
	fi
done
(cd "$first/bin" && sha256sum ./*)
[ "${#differ[@]}" = 0 ] || { (cd "$second/bin" && sha256sum ./*); exit 1; }
echo "reproducible: the same bytes, by $(go version)"
