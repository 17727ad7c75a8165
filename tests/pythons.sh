#!/usr/bin/env bash
# Run the quick tests on every supported Python that is available, and list the missing versions. The Python of
# .venv is skipped: it runs all tests elsewhere. With `install` it only creates the environments. REQUIRED: the
# number of versions that must have run, including the version of .venv.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/environments.sh

supported=(3.11 3.12 3.13 3.14)
# The other tests of tests/unit/project check pages and sources, and do not depend on the version.
project=(tests/unit/project/test_{leaks,light_imports,run_jobs}.py)
tests=(tests/unit/{command,core,spark,topology} "${project[@]}" tests/conformance tests/contract)
required=${REQUIRED:-1}

ran=() absent=() failed=()
for version in "${supported[@]}"; do
    python=$(environment_of "$version") || { absent+=("$version"); continue; }
    ran+=("$version")
    [[ ${1:-} == install || $version == "$own" ]] && continue
    echo "--- Python $version: $python"
    "$python" -m pytest -q --numprocesses=2 --dist=loadfile -m 'not slow and not long' "${tests[@]}" \
        || failed+=("$version")
done

[[ ${1:-} == install ]] && exit 0
for version in "${absent[@]}"; do
    echo "NOT TESTED on Python $version: not on PATH, nor of pyenv or Maven, or no packages" >&2
done
for version in "${failed[@]}"; do
    echo "FAILED on Python $version" >&2
done
echo "tested on Python: ${ran[*]:-none}"
((${#failed[@]} == 0 && ${#ran[@]} >= required))
