# shellcheck shell=bash
# Sourced by extras.sh, pythons.sh and sparks.sh, in the clone's root.

venv=${VENV:-.venv}
own=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# Print the path of an interpreter: one on PATH that starts, else pyenv's newest of that version.
find_python() {
    local found
    found=$(command -v "python$1") && "$found" -c '' 2>/dev/null && { echo "$found"; return; }
    command -v pyenv >/dev/null || return
    found=$(pyenv versions --bare 2>/dev/null | grep -E "^${1//./\\.}\.[0-9]+$" | sort -V | tail -1)
    [[ $found ]] && echo "$(pyenv prefix "$found")/bin/python"
}

# Print the Python of the environment for a version; make it, with all that development needs, if it is not there.
environment_of() {
    local place=.venv-$1 python
    [[ $1 == "$own" ]] && { echo "$venv/bin/python"; return; }
    python=$(find_python "$1") || return
    if [[ ! -e $place/.done || pyproject.toml -nt $place/.done ]]; then
        echo "making $place with $python" >&2
        "$python" -m venv "$place" &&
            "$place/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]' >&2 &&
            touch "$place/.done" || return
    fi
    echo "$place/bin/python"
}
