"""Two executors in separate JVMs: a worker next to each, and the ways to provide Tuplewire to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import venv_pack
from helpers.interpreters import make_interpreter, make_movable_interpreter, site_packages
from helpers.packaging import ROOT, build_wheel
from pyspark.sql import SparkSession
from warm_spark import WarmSpark

from tuplewire.connection.control_client import ControlClient
from tuplewire.spark.package import write_package
from tuplewire_demos.local_session import find_java, wrapped_home

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("cluster_driver.py")
APPLICATION = Path(__file__).with_name("submitted.py")
DRIVER_SECONDS = 300.0
ROWS = 1000
TASKS = {0: [1, 3, 5, 7, 9, 11], 1: [2, 4, 6, 8, 10, 12]}


def packed(home: Path, wheel: Path) -> Path:
    """Pack an environment as its page describes."""
    needed = ("grpc", "google", "typing_extensions", "pyarrow")
    python = make_movable_interpreter(home / "environment", needed)
    install(python, wheel)
    archive = home / "environment.tar.gz"
    venv_pack.pack(str(home / "environment"), str(archive), compress_level=0)
    return archive


def install(python: Path, wheel: Path) -> None:
    """Install only the wheel, as an image would; tests/contract/test_wheel.py tests the use of pip."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site_packages(python))


def beside_its_worker(python: Path, sockets: Path) -> Path:
    """Return an interpreter with the address of the worker next to its executor, as in a pod with a sidecar.

    The name of an executor's folder is its number.
    """
    program = python.with_name("python-beside-its-worker")
    address = f'"unix://{sockets}/worker-$(basename "$PWD").sock"'
    program.write_text(f'#!/bin/sh\nTUPLEWIRE_ADDRESS={address} exec {python} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def outcome(
    spark: SparkSession, launch: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Run the driver; yield the result of each case, and the number of messages that each worker received."""
    home = tmp_path_factory.mktemp("cluster")
    quick = spark.sparkContext.getConf().get("spark.executor.extraJavaOptions", "")
    wheel = build_wheel(ROOT, home)
    artifact, py_file = home / "by-artifact.zip", home / "by-py-file.zip"
    for path in (artifact, py_file):
        write_package(path)
    bare = make_interpreter(home / "bare")
    installed = make_interpreter(home / "wheel")
    install(installed, wheel)
    no_grpcio = make_interpreter(home / "no-grpcio", without=["grpc"])
    other = make_interpreter(home / "other")
    for python in (no_grpcio, other):
        shutil.copytree(site_packages(installed) / "tuplewire", site_packages(python) / "tuplewire")
    init = site_packages(other) / "tuplewire" / "__init__.py"
    init.write_text(init.read_text(encoding="utf-8") + '__version__ = "0.0.9"\n', encoding="utf-8")
    archive = packed(home, wheel)
    with launch("spark", TASKS) as running:
        settings = {
            "address": running.endpoints[0].address,
            "archive": str(archive),
            "artifact": str(artifact),
            "bare": str(bare),
            "checkpoint": str(home / "checkpoint"),
            "no_grpcio": str(no_grpcio),
            "other": str(other),
            "wheel": str(beside_its_worker(installed, running.local.directory)),
            "work": str(home / "work"),
        }
        driver = subprocess.run(
            [sys.executable, str(DRIVER)],
            check=True,
            cwd=home,
            input=json.dumps(settings),
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
            timeout=DRIVER_SECONDS,
        )
        found = dict(json.loads(line) for line in driver.stdout.splitlines())
        found["py_file"] = submit(bare, py_file, running.endpoints[0].address, home, quick)
        found["sent"] = [sent_by_programs(each.address) for each in running.endpoints]
        yield found
    shutil.rmtree(home, ignore_errors=True)


def submit(python: Path, py_file: Path, address: str, cwd: Path, java_options: str) -> tuple[int, list[str]]:
    """Submit an application to a separate Spark; return its row count and the locations of Tuplewire."""
    home = Path(pyspark.__file__).parent
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": java_options,
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(home / "bin" / "spark-submit"), "--master=local[2]", f"--py-files={py_file}"]
    flags = [flag for key, value in conf.items() for flag in ("--conf", f"{key}={value}")]
    dropped = {"PYTHONPATH", *WarmSpark().environment}
    environment = {name: value for name, value in os.environ.items() if name not in dropped} | {
        "JAVA_HOME": str(wrapped_home(find_java(), cwd / "java")),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LAUNCHER_OPTS": java_options,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ran = subprocess.run(
        [*command, *flags, str(APPLICATION), address],
        capture_output=True,
        check=False,
        cwd=cwd,
        env=environment,
        start_new_session=True,
        text=True,
        timeout=DRIVER_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    rows, *places = json.loads(ran.stdout.splitlines()[-1])
    return rows, places


def sent_by_programs(address: str) -> int:
    """Return the number of messages that a worker received from clients."""
    with ControlClient(address) as control:
        return sum(each.messages for each in control.status().received if each.source == "client")


def test_sink_beside_each_executor(outcome: dict[str, Any]) -> None:
    """With a wheel in the executors' interpreter, each executor writes through the worker next to it."""
    assert outcome["sink"] == ROWS
    assert min(outcome["sent"]) >= ROWS // 2


@pytest.mark.parametrize("case", ["stream", "client"])
def test_on_two_executors(outcome: dict[str, Any], case: str) -> None:
    """A streaming query from source to sink and a client in mapInArrow work on two executors."""
    assert outcome[case] == ROWS


@pytest.mark.parametrize(
    ("case", "origin"),
    [("archive", "environment/lib"), ("artifact", "by-artifact.zip"), ("py_file", "by-py-file.zip")],
)
def test_shipped(outcome: dict[str, Any], case: str, origin: str) -> None:
    """Executors load Tuplewire from a packed environment, or from a zip by addArtifact or --py-files."""
    rows, places = outcome[case]
    assert rows == ROWS
    assert all(origin in place for place in places), places


def test_missing_library(outcome: dict[str, Any]) -> None:
    """An executor without grpcio raises an error with advice."""
    assert "no-grpcio/bin/python" in outcome["no_library"]
    assert "has grpcio none (No module named 'grpc')" in outcome["no_library"]
    assert "spark.archives" in outcome["no_library"]


def test_other_release(outcome: dict[str, Any]) -> None:
    """An executor with another release raises an error with advice."""
    assert "has tuplewire 0.0.9, and the driver has" in outcome["other_release"]
    assert "bring them to the same release" in outcome["other_release"]
