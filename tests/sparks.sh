#!/usr/bin/env bash
# Run tests/spark/release_smoke.py on each supported line of Spark, and list the Pythons that are missing.
# With `install` it only downloads the releases. ONLY: lines, such as "4.0 4.1".
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/environments.sh

# The last release of each line. Every environment contains 4.3; other releases precede it on PYTHONPATH.
declare -A releases=([3.5]=3.5.9 [4.0]=4.0.5 [4.1]=4.1.4 [4.2]=4.2.1)
# The Pythons that each line supports. The first available one runs it; together, the lines cover all Pythons.
declare -A pythons=(
    [3.5]="3.11"
    [4.0]="3.12 3.13 3.11"
    [4.1]="3.13 3.12 3.11 3.14"
    [4.2]="3.12 3.13 3.14 3.11"
    [4.3]="3.14 3.13 3.12 3.11"
)

# Download a release if it is missing, and print its folder.
folder_of() {
    local place=build/sparks/$2
    if [[ ! -e $place/.done ]]; then
        rm -rf "$place"
        "$1" -m pip install --quiet --disable-pip-version-check --no-compile \
            --target "$place" "pyspark==$2" >&2 &&
            touch "$place/.done" || return
    fi
    echo "$PWD/$place"
}

passed=() failed=() used=()
for line in ${ONLY:-3.5 4.0 4.1 4.2 4.3}; do
    python='' folder=''
    for version in ${pythons[$line]}; do
        python=$(environment_of "$version") && break
    done
    [[ $python ]] || { failed+=("$line: it takes a Python of ${pythons[$line]}"); continue; }
    release=${releases[$line]:-}
    [[ -z $release ]] || folder=$(folder_of "$python" "$release") || { failed+=("$line: no $release"); continue; }
    [[ ${1:-} == install ]] && continue
    used+=("$version")
    timeout "${SECONDS_EACH:-1200}" env PYTHONPATH="$folder" "$python" tests/spark/release_smoke.py "$line" &&
        passed+=("$line") || failed+=("$line")
done

for line in "${failed[@]}"; do
    echo "FAILED on Spark $line" >&2
done
[[ ${1:-} == install ]] && exit $((${#failed[@]} > 0))
for version in 3.11 3.12 3.13 3.14; do
    [[ " ${used[*]} " == *" $version "* ]] || echo "NOT TESTED with Spark: Python $version, which is not here or not asked for" >&2
done
echo "passed on Spark: ${passed[*]:-none}, with Python $(printf '%s\n' "${used[@]}" | sort -u | xargs)"
((${#failed[@]} == 0))
