#!/usr/bin/env bash
# Build the worker's image without a Docker engine, into an OCI layout. --help says more.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

usage() {
    cat <<'END'
Build the worker's image without a Docker engine, into an OCI layout.

  deploy/build-image.sh [--base IMAGE] [--out DIR] [--tag TAG]

  --base IMAGE  what it stands on. Without it: the Dockerfile's base where its registry answers, else a
                Debian with Python, made here of packages (mmdebstrap). `debian` is that one in any case.
  --out DIR     the OCI layout that is written (default build/image/oci)
  --tag TAG     its tag there (default dev)

Example, with what can be done with the result:
  deploy/build-image.sh --base registry.example/python:3.11-slim
  skopeo copy oci:build/image/oci:dev docker://registry.example/tuplewire:0.1.0
  podman pull oci:build/image/oci:dev

Needs buildah, skopeo, mmdebstrap (make deploy-tools), and a Python 3.11 with pip: python3, or $PYTHON. The
Debian and the downloaded wheels are kept in build/image and used again, also without a network. Versions and
hashes of all that is installed for Python are in deploy/*requirements.lock (make lock). Of the machine's pip
configuration nothing reaches the image. The same commit and base give the same image; its time is the commit's,
or $SOURCE_DATE_EPOCH.

Beside the layout, in DIR.facts, it writes what the image is made of: bom.cdx.json (CycloneDX), licences.md and
provenance.json (SLSA, not signed), where Python has cyclonedx-python-lib (make deploy-tools).
END
}

fail() {
    echo "build-image.sh: $1" >&2
    exit 1
}

base='' out=build/image/oci tag=dev
while (($#)); do
    case $1 in
        -h | --help) usage && exit ;;
        --base | --out | --tag)
            (($# > 1)) || fail "$1 needs a value; see --help"
            declare "${1#--}=$2"
            shift 2
            ;;
        *) fail "unknown argument $1; see --help" ;;
    esac
done

python=${PYTHON:-python3}
for tool in buildah skopeo; do
    command -v "$tool" >/dev/null || fail "$tool is missing; as root on Debian: deploy/install-tools.sh"
done
"$python" -c 'import pip, tomllib' 2>/dev/null || fail "$python is no Python 3.11 with pip: set PYTHON to one"
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) ||
        fail "this is no git clone: set SOURCE_DATE_EPOCH to the image's time, in seconds since 1970"
fi
export SOURCE_DATE_EPOCH

work=$PWD/build/image
mkdir -p "$work"
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$work/policy.json"
# Storage of our own: what this leaves behind is gone with the folder.
build() {
    command buildah --root "$work/storage" --runroot "$work/run" "$@"
}
checksum() {
    sha256sum | cut -c1-12
}

# --- the base ---------------------------------------------------------------------------------

debian() {
    local recipe=(--variant=essential '--include=python3-venv,libstdc++6')
    local folder
    for folder in doc man locale; do
        recipe+=("--dpkgopt=path-exclude=/usr/share/$folder/*")
    done
    recipe+=('--dpkgopt=path-include=/usr/share/doc/*/copyright')  # whoever passes the image on passes on these, too
    # The first hook merges /usr, so that the package usrmerge, which needs all of Perl, is not wanted. The machine's
    # own resolver and name are no part of an image.
    # shellcheck disable=SC2016
    recipe+=(
        --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr
        '--customize-hook=rm "$1/etc/resolv.conf" "$1/etc/hostname"'
        bookworm
    )
    local layout
    layout=debian-$(checksum <<<"${recipe[*]}")
    if [[ ! -d $work/$layout ]]; then
        command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing; as root on Debian: deploy/install-tools.sh"
        echo "Making a Debian with Python (a minute, once) ..." >&2
        # The commit's time would make newer files of Debian older than the bytecode made of them says.
        env --unset=SOURCE_DATE_EPOCH mmdebstrap --quiet "${recipe[@]}" "$work/debian.tar" &>"$work/debian.log" ||
            fail "mmdebstrap failed; the log is $work/debian.log: $(tail -1 "$work/debian.log")"
        rm -rf "$work/$layout.part"
        skopeo copy --quiet --policy "$work/policy.json" "tarball:$work/debian.tar" "oci:$work/$layout.part:latest"
        rm "$work/debian.tar"
        mv "$work/$layout.part" "$work/$layout"
    fi
    echo "oci:$layout:latest"
}

# skopeo takes a tag or a digest, and not both.
by_digest() {
    sed -E 's|:[^:/@]+(@sha256:)|\1|' <<<"$1"
}

if [[ -z $base ]]; then
    base=$(sed -n 's/^ARG BASE=//p' deploy/Dockerfile)
    if ! timeout 30 skopeo inspect --policy "$work/policy.json" --config "docker://$(by_digest "$base")" >/dev/null 2>&1; then
        echo "The registry of $base does not answer; the base is a Debian made here." >&2
        base=debian
    fi
fi
if [[ $base == debian ]]; then
    base=$(debian)
fi
echo "Base: $base" >&2
name=$base
base=$(by_digest "$base")
# Pulled from a layout, an image is named for the path, which must hold no capital: hence the relative one.
base=$(cd "$work" && build pull --quiet --signature-policy policy.json "$base")

# --- the wheels -------------------------------------------------------------------------------

# The machine's pip, with whatever configuration it has, fetches what the base's Python needs.
container=$(build from --signature-policy "$work/policy.json" "$base")
version=$(
    build run --isolation chroot "$container" -- python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'
) || fail "python3 does not run in the base; choose another --base"
build rm "$container" >/dev/null

machine=$(uname -m)
wheels=$work/wheels-$(checksum < <(cat deploy/*requirements.lock && echo "$version $machine"))
if [[ ! -d $wheels ]]; then
    echo "Downloading wheels for Python $version ..." >&2
    platforms=()
    for minor in {17..28}; do
        platforms+=(--platform "manylinux_2_${minor}_$machine")
    done
    rm -rf "$wheels.part"
    for lock in deploy/requirements.lock deploy/build-requirements.lock; do
        "$python" -m pip --disable-pip-version-check --quiet download --dest "$wheels.part" --only-binary=:all: \
            --python-version "$version" "${platforms[@]}" --platform "manylinux2014_$machine" \
            --require-hashes --requirement "$lock"
    done
    mv "$wheels.part" "$wheels"
fi
printf '[global]\nno-index = true\nfind-links = /mnt\n' >"$work/pip.conf"

# --- the image --------------------------------------------------------------------------------

echo "Building ..." >&2
release=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' clients/tuplewire/__init__.py)
build bud --isolation chroot --signature-policy "$work/policy.json" --layers=false --timestamp "$SOURCE_DATE_EPOCH" \
    --secret "id=pip.conf,src=$work/pip.conf" --volume "$wheels:/mnt:ro" \
    --build-arg BASE="$base" \
    --build-arg VERSION="$release" \
    --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
    --file deploy/Dockerfile --tag "tuplewire:$tag" --quiet . >"$work/id"
rm -rf "$out"
build push --quiet --signature-policy "$work/policy.json" "tuplewire:$tag" "oci:$out:$tag"

# --- what it is made of ------------------------------------------------------------------------

if "$python" -c 'import cyclonedx' 2>/dev/null; then
    container=$(build from --signature-policy "$work/policy.json" "tuplewire:$tag")
    "$python" deploy/image_facts.py "$(build mount "$container")" --layout "$out" --out "$out.facts" \
        --base "$name" --revision "$(git rev-parse HEAD 2>/dev/null || echo unknown)" --version "$release"
else
    echo "Not written: $out.facts, for want of cyclonedx-python-lib in $python" >&2
fi
build rm --all >/dev/null
build rmi --prune >/dev/null
echo "Wrote oci:$out:$tag, $(du -sh "$out" | cut -f1) compressed" >&2
