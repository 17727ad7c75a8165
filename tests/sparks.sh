#!/usr/bin/env bash
# Run tests/spark/release_smoke.py on each supported release of Spark, with the newest Python found here that
# the release knows. With `install` it only makes the environments. ONLY: releases, like "4.0.5 4.1.4".
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/find_python.sh

# The last release of each line, and the Pythons that it knows; tests/spark has 4.3 on the one that made .venv.
declare -A pythons=(
    [3.5.9]="3.11"
    [4.0.5]="3.13 3.12 3.11"
    [4.1.4]="3.14 3.13 3.12 3.11"
    [4.2.1]="3.14 3.13 3.12 3.11"
    [4.3.0]="3.14 3.13 3.12 3.11"
)

passed=() failed=()
for release in ${ONLY:-3.5.9 4.0.5 4.1.4 4.2.1 4.3.0}; do
    for version in ${pythons[$release]}; do
        python=$(find_python "$version") && break
    done
    venv=.venv-spark-$release
    echo "--- Spark $release: ${python:-no Python of ${pythons[$release]}}"
    if [[ ! -e $venv/.done || pyproject.toml -nt $venv/.done ]]; then
        "$python" -m venv "$venv" &&
            "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
                --editable '.[service,spark]' "pyspark==$release" &&
            touch "$venv/.done" || { failed+=("$release (no packages)"); continue; }
    fi
    [[ ${1:-} == install ]] && continue
    timeout "${SECONDS_EACH:-400}" "$venv/bin/python" tests/spark/release_smoke.py &&
        passed+=("$release") || failed+=("$release")
done

for release in "${failed[@]}"; do
    echo "FAILED on Spark $release" >&2
done
[[ ${1:-} == install ]] || echo "passed on Spark: ${passed[*]:-none}"
((${#failed[@]} == 0))
