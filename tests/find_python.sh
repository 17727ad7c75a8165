# Sourced by pythons.sh and sparks.sh.

# Print the path of an interpreter: one on PATH that starts, else pyenv's newest of that version.
find_python() {
    local found
    found=$(command -v "python$1") && "$found" -c '' 2>/dev/null && { echo "$found"; return; }
    command -v pyenv >/dev/null || return
    found=$(pyenv versions --bare 2>/dev/null | grep -E "^${1//./\\.}\.[0-9]+$" | sort -V | tail -1)
    [[ $found ]] && echo "$(pyenv prefix "$found")/bin/python"
}
