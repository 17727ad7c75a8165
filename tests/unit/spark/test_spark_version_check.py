"""Version checks of executors against the driver."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.executors import pipeline
from helpers.packaging import make_interpreter
from helpers.tools import ran

from tuplewire.spark import ClientHandle
from tuplewire.spark.version_check import REQUIRED_VERSIONS, VersionMismatchError, check_versions
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.spark.member import Submission
from tuplewire_topology.spark.rows import Output

DRIVER = {"tuplewire": "0.1.0", "grpcio": "1.82.3", "protobuf": "7.36.2"}


def test_required_is_what_the_distribution_declares() -> None:
    """The version limits equal those in pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {f"{name}{required}" for name, required in REQUIRED_VERSIONS.items()}
    assert set(project["project"]["dependencies"]) == declared


@pytest.mark.parametrize(
    ("grpcio", "protobuf"), [("1.74.0", "6.31.1"), ("1.82.9rc1", "7.99"), ("1.74", "7.0.0"), ("1.85", "7.0")]
)
def test_fits(grpcio: str, protobuf: str) -> None:
    """An executor may have any version within the limits, regardless of the driver's version."""
    check_versions(DRIVER, DRIVER | {"grpcio": grpcio, "protobuf": protobuf})


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (DRIVER | {"tuplewire": "0.2.0"}, "has tuplewire 0.2.0, and the driver has 0.1.0: bring them"),
        (
            DRIVER | {"grpcio": "1.9.1", "protobuf": "7.0"},
            r"has grpcio 1.9.1, and tuplewire .* needs grpcio>=1.74,!=1.83.\*,<2 \(the driver has 1.82.3\)",
        ),
        (DRIVER | {"grpcio": "1.83.0", "protobuf": "7.0"}, "has grpcio 1.83.0"),
        (DRIVER | {"grpcio": "1.80.0", "protobuf": "6.31.0"}, "has protobuf 6.31.0"),
        (
            DRIVER | {"grpcio": "none (cannot import name 'cygrpc')", "protobuf": "7.0"},
            r"cannot import name 'cygrpc'.*--py-files cannot ship: .*spark\.archives.*PYSPARK_PYTHON",
        ),
    ],
)
def test_does_not_fit(executor: dict[str, str], message: str) -> None:
    """Another release, and a missing or incompatible library, are errors that describe the fix."""
    with pytest.raises(VersionMismatchError, match=re.compile(message)):
        check_versions(DRIVER, executor)


def submitted() -> Submission:
    """Return a topology in the form that is sent to executors."""
    return Submission("t", "run", pipeline({"source": FeederSpout([])}), {}, 1, Output({}, frozenset()))


@pytest.mark.parametrize("make", [lambda: ClientHandle("127.0.0.1:1"), submitted], ids=["handle", "topology"])
def test_nothing_is_unpacked_where_a_library_is_missing(make: Callable[[], object], tmp_path: Path) -> None:
    """Unpickling without grpcio raises an error that names the missing library and the fix."""
    python = make_interpreter(tmp_path / "without", without=["grpc"])
    pickled = pickle.dumps(make())
    code = (
        "import pickle, sys\ntry:\n  pickle.load(sys.stdin.buffer)\nexcept Exception as e:\n  print(repr(e))"
    )
    clients = os.pathsep.join(str(Path(__file__).parents[3] / each) for each in ("clients", "topology"))
    shown = subprocess.run(
        [python, "-c", code], input=pickled, capture_output=True, check=True, env={"PYTHONPATH": clients}
    ).stdout.decode()
    assert shown.startswith("VersionMismatchError"), shown
    assert "has grpcio none (No module named 'grpc')" in shown


def test_a_folder_of_the_same_name_is_no_library(tmp_path: Path) -> None:
    """A folder google/protobuf from Spark's jars on the path does not count as the library."""
    python = make_interpreter(tmp_path / "without", without=["google"])
    (tmp_path / "jar" / "google" / "protobuf").mkdir(parents=True)
    code = "from tuplewire.spark.version_check import versions; print(versions()['protobuf'])"
    path = f"{Path(__file__).parents[3] / 'clients'}:{tmp_path / 'jar'}"
    shown = ran(python, "-c", code, check=True, env={"PYTHONPATH": path})
    assert shown.stdout == "none (google.protobuf is a folder of something else)\n"


@pytest.mark.parametrize("used_again", [True, False])
def test_imports_are_set_apart_where_spark_uses_a_process_again(*, used_again: bool) -> None:
    """Imports are excluded from Spark's garbage collection only in reused processes."""
    code = "import gc, pickle, sys; pickle.load(sys.stdin.buffer); print(gc.get_freeze_count() > 10_000)"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(ClientHandle("127.0.0.1:1")),
        capture_output=True,
        check=True,
        env={**os.environ, **({"SPARK_REUSE_WORKER": "1"} if used_again else {})},
    )
    assert shown.stdout.decode() == f"{used_again}\n"
