#!/usr/bin/env bash
# Write the digest that the base's tag has now into the Dockerfile. Needs skopeo, and the registry.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")"

base=$(sed -n 's/^ARG BASE=//p' Dockerfile)
tag=${base%@*}
digest=$(skopeo inspect --raw "docker://$tag" | sha256sum | cut -d' ' -f1) || {
    echo "pin-base.sh: the registry of $tag does not answer" >&2
    exit 1
}
sed -i "s|^ARG BASE=.*|ARG BASE=$tag@sha256:$digest|" Dockerfile
echo "$tag is sha256:$digest now"
