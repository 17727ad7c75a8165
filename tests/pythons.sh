#!/usr/bin/env bash
# Run the quick tests on every supported Python that is found here, and name those that are not.
# With `install` it only makes their environments. SKIP: a version that is tested otherwise. REQUIRED: how many
# versions must have run, that one included.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/find_python.sh

supported=(3.11 3.12 3.13 3.14)
tests=(tests/unit tests/conformance tests/contract)
required=${REQUIRED:-1}

ran=() absent=() failed=()
for version in "${supported[@]}"; do
    if [[ $version == "${SKIP:-}" ]]; then
        ran+=("$version")
        continue
    fi
    if ! python=$(find_python "$version"); then
        absent+=("$version")
        continue
    fi
    venv=.venv-$version
    echo "--- Python $version: $python"
    if [[ ! -e $venv/.done || pyproject.toml -nt $venv/.done ]]; then
        "$python" -m venv "$venv" &&
            "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]' &&
            touch "$venv/.done" || { absent+=("$version"); continue; }
    fi
    [[ ${1:-} == install ]] && continue
    "$venv/bin/python" -m pytest -q --numprocesses=2 --dist=loadfile -m 'not slow and not long' "${tests[@]}" \
        || failed+=("$version")
    ran+=("$version")
done

[[ ${1:-} == install ]] && exit 0
for version in "${absent[@]}"; do
    echo "NOT TESTED on Python $version: no python$version on PATH, no $version of pyenv, or no packages" >&2
done
for version in "${failed[@]}"; do
    echo "FAILED on Python $version" >&2
done
echo "tested on Python: ${ran[*]:-none}"
((${#failed[@]} == 0 && ${#ran[@]} >= required))
