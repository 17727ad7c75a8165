#!/usr/bin/env bash
# Build, publish and sign the image and the chart of a release. --help says more.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

usage() {
    cat <<'END'
Build, publish and sign the image and the chart of a release.

  deploy/release-image.sh REPOSITORY [--dry-run]

  REPOSITORY  where the image goes, such as registry.example/tuplewire; the chart goes to its folder, charts/
  --dry-run   check what can be checked here, and print what would be run

The commit must be clean and have the tag of its version, and the Dockerfile's base must have a digest
(deploy/pin-base.sh). Needs docker with buildx for linux/amd64 and linux/arm64, skopeo, umoci, helm, cosign, and
a Python with cyclonedx-python-lib: python3, or $PYTHON. cosign signs without a key where the environment has an
identity (OIDC), as the workflow .github/workflows/release.yml has.
END
}

fail() {
    echo "release-image.sh: $1" >&2
    exit 1
}

repository='' run=()
for argument in "$@"; do
    case $argument in
        -h | --help) usage && exit ;;
        --dry-run) run=(echo) ;;
        -*) fail "unknown argument $argument; see --help" ;;
        *) repository=$argument ;;
    esac
done
[[ -n $repository ]] || fail "name the repository; see --help"

python=${PYTHON:-python3}
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' clients/tuplewire/__init__.py)
base=$(sed -n 's/^ARG BASE=//p' deploy/Dockerfile)
revision=$(git rev-parse HEAD)
[[ $base == *@sha256:* ]] || fail "the Dockerfile's base $base has no digest: run deploy/pin-base.sh, and commit"
[[ -z $(git status --porcelain) ]] || fail "the tree has changes that are not committed"
[[ " $(git tag --points-at HEAD | tr '\n' ' ') " == *" v$version "* ]] || fail "the commit has no tag v$version"

work=build/release
rm -rf "$work"
mkdir -p "$work"

# --- the image: both machines, with BuildKit's own bill of materials and provenance beside each ---------------
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
"${run[@]}" docker buildx build --platform linux/amd64,linux/arm64 --file deploy/Dockerfile \
    --build-arg VERSION="$version" --build-arg REVISION="$revision" --provenance mode=max --sbom true \
    --output "type=registry,rewrite-timestamp=true" --metadata-file "$work/metadata.json" \
    --tag "$repository:$version" .
digest=sha256:printed-by-the-build
if ((!${#run[@]})); then
    digest=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["containerimage.digest"])' \
        "$work/metadata.json")
fi
image=$repository@$digest

# --- what it is made of, as one document for each machine ------------------------------------------------------
"${run[@]}" cosign sign --yes --recursive "$image"
for machine in amd64 arm64; do
    "${run[@]}" skopeo copy --override-arch "$machine" "docker://$image" "oci:$work/$machine:released"
    "${run[@]}" umoci unpack --rootless --image "$work/$machine:released" "$work/$machine-bundle"
    "${run[@]}" "$python" deploy/image_facts.py "$work/$machine-bundle/rootfs" --layout "$work/$machine" \
        --out "$work/$machine-facts" --base "$base" --revision "$revision" --version "$version"
    "${run[@]}" cosign attest --yes --type cyclonedx --predicate "$work/$machine-facts/bom.cdx.json" "$image"
done

# --- the chart, which names the image by its digest ---------------------------------------------------------------
cp -r deploy/helm/tuplewire "$work/tuplewire"
sed -i "s|^  repository: .*|  repository: $repository|; s|^  digest: .*|  digest: $digest|" \
    "$work/tuplewire/values.yaml"
"${run[@]}" helm package --destination "$work" "$work/tuplewire"
"${run[@]}" helm push "$work/tuplewire-$version.tgz" "oci://${repository%/*}/charts"
"${run[@]}" cosign sign --yes "${repository%/*}/charts/tuplewire:$version"
echo "Released $image; verify: cosign verify $image --certificate-identity-regexp ... --certificate-oidc-issuer ..."
