#!/usr/bin/env bash
# Install what `make deploy-check` needs beyond Python: Debian packages (as root) and npm modules (in build/npm).
# What it cannot install it names; the checks that need it are skipped then, and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

# package: a program that it brings
packages=(
    buildah:buildah
    crun:crun
    mmdebstrap:mmdebstrap
    prometheus:prometheus
    skopeo:skopeo
    umoci:umoci
)
npm_modules=()

missing=()
for entry in "${packages[@]}"; do
    command -v "${entry#*:}" >/dev/null || missing+=("${entry%%:*}")
done
if ((${#missing[@]})); then
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "Installing ${missing[*]} ..."
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -qq -y --no-install-recommends "${missing[@]}"
    else
        echo "not installed: ${missing[*]}; as root on Debian: apt-get install ${missing[*]}" >&2
    fi
fi

if ((${#npm_modules[@]})); then
    if command -v npm >/dev/null; then
        npm install --silent --no-audit --no-fund --prefix build/npm "${npm_modules[@]}"
    else
        echo "npm is missing, and with it: ${npm_modules[*]}; install Node.js" >&2
    fi
fi
