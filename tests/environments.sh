# shellcheck shell=bash
# Sourced by extras.sh, pythons.sh and sparks.sh, in the clone's root.

venv=${VENV:-.venv}
own=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# Interpreters for Linux on x86-64 in Maven's repository: versions of org.bytedeco:cpython.
declare -A published=([3.14]=3.14.3-1.5.13)

# Print the path of an interpreter: a working one on PATH, else pyenv's newest of that version, else Maven's.
find_python() {
    local found
    found=$(command -v "python$1") && "$found" -c '' 2>/dev/null && { echo "$found"; return; }
    found=$(pyenv versions --bare 2>/dev/null | grep -E "^${1//./\\.}\.[0-9]+$" | sort -V | tail -1)
    [[ $found ]] && { echo "$(pyenv prefix "$found")/bin/python"; return; }
    fetch_python "$1"
}

# Print the path of Maven's interpreter; download it if it is missing.
fetch_python() {
    local place=$PWD/build/python-$1 artifact=org.bytedeco:cpython:${published[$1]:-}:jar:linux-x86_64
    local python=$place/org/bytedeco/cpython/linux-x86_64/bin/python$1
    if [[ ! -x $python ]]; then
        [[ ${published[$1]:-} && $(uname -sm) == "Linux x86_64" ]] && command -v mvn >/dev/null || return
        echo "fetching Python $1 by Maven" >&2
        mvn --batch-mode --quiet dependency:copy "-Dartifact=$artifact" "-DoutputDirectory=$place" >&2 &&
            "$venv/bin/python" -m zipfile -e "$place/cpython-${published[$1]}-linux-x86_64.jar" "$place" &&
            chmod +x "$python" || return
    fi
    echo "$python"
}

# Print the Python of the environment for a version; create it if it is missing. It has the packages that the tests
# of pythons.sh and sparks.sh import: a third of the development packages. The tests import fewer than one module of
# ten: compiling all of them would take half a minute.
environment_of() {
    local place=.venv-$1 python
    [[ $1 == "$own" ]] && { echo "$venv/bin/python"; return; }
    python=$(find_python "$1") || return
    if [[ ! -e $place/.done || pyproject.toml -nt $place/.done ]]; then
        echo "making $place with $python" >&2
        "$python" -m venv "$place" &&
            "$place/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
                cryptography hypothesis pytest pytest-timeout pytest-xdist \
                --editable '.[demo,otel,shell,zmq]' >&2 &&
            touch "$place/.done" || return
    fi
    echo "$place/bin/python"
}
