"""The published wheel: its content, metadata and use, also by the wheel of a third-party transport."""

from __future__ import annotations

import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from helpers.packaging import build_wheel, install, run
from helpers.tools import ROOT

pytestmark = pytest.mark.slow


TOY = ROOT / "tests" / "contract" / "toy"

FIND = """
import sys
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory

for name in sys.argv[1:]:
    conf = {TRANSPORT_KEY: name, "tuplewire.transport.worker_id": "w7"}
    context = TransportFactory.make_context(conf)
    assert type(context).__module__ == "toy_transport.context", type(context)
    server = context.bind("words", 0)
    context.connect("words", "127.0.0.1", server.port).send(3, b"hello")
    message = server.recv()
    (count,) = server.statistics().received
    context.term()
    print("toy" in TransportFactory.names(), message.task, message.message.decode(), count.source)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source tree."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """List the wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_module_and_proto(names: set[str]) -> None:
    """The wheel contains every module, type marker and stub of generated code, and the wire contract."""
    protos = [path.relative_to(ROOT / "proto").as_posix() for path in (ROOT / "proto").rglob("*.proto")]
    assert protos
    assert {f"tuplewire/proto/{path}" for path in protos} <= names
    for folder in ("clients", "service", "topology"):
        for pattern in ("*.py", "*.pyi", "py.typed"):
            for path in (ROOT / folder).rglob(pattern):
                assert path.relative_to(ROOT / folder).as_posix() in names
    assert {f"{name}/py.typed" for name in ("tuplewire", "tuplewire_service", "tuplewire_topology")} <= names


def test_nothing_else(names: set[str]) -> None:
    """The wheel contains no tests, caches, build files or other top-level packages."""
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} <= {
        "tuplewire",
        "tuplewire_service",
        "tuplewire_topology",
        "pyspark_tuplewire",
        "tuplewire_demos",
    }
    assert not [name for name in names if "test_" in name or "conftest" in name or "__pycache__" in name]


def test_metadata(wheel: Path, names: set[str]) -> None:
    """Name, license, extras, the command and the transports are declared, for every platform."""
    assert wheel.name.endswith("-py3-none-any.whl")
    info = next(name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(info))
        entry_points = archive.read(info.replace("METADATA", "entry_points.txt")).decode()
    assert metadata["Name"] == "tuplewire"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"service", "zmq", "spark", "demo", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    assert "tuplewire = tuplewire_service.command.entry:main" in entry_points
    assert "[tuplewire.transports]" in entry_points
    assert "[tuplewire.run]" in entry_points
    assert info.replace("METADATA", "licenses/LICENSE") in names


def test_page_of_an_index(wheel: Path, tmp_path: Path) -> None:
    """The README renders on a package index, and the index accepts the metadata."""
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=tmp_path)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install both wheels with only their required dependencies, and return the folder of their programs."""
    toy = build_wheel(TOY, tmp_path_factory.mktemp("toy"))
    return install(tmp_path_factory.mktemp("install"), wheel, toy)


def test_import_and_command(installed: Path, tmp_path: Path) -> None:
    """The installed command runs; package and generated code can be imported without the source tree."""
    shown = run(installed / "tuplewire", "--help", cwd=tmp_path)
    assert "worker" in shown
    assert "run" in shown
    code = "import tuplewire, tuplewire.v1.messaging_pb2_grpc; print(tuplewire.__file__)"
    where = run(installed / "python", "-c", code, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_a_third_party_transport_is_found(installed: Path, tmp_path: Path) -> None:
    """The setting accepts an entry point, an IContext or a factory; the context is prepared, and works."""
    names = [f"toy_transport.context{dot}{name}" for dot in ":." for name in ("ToyContext", "ToyFactory")]
    shown = run(installed / "python", "-c", FIND, "toy", *names, cwd=tmp_path)
    assert shown.splitlines() == ["True 3 hello w7"] * 5


@pytest.mark.long
def test_a_third_party_transport_conforms(installed: Path, tmp_path: Path) -> None:
    """The shipped kit passes without a test runner, in an environment with only the two wheels."""
    passed = run(installed / "python", TOY / "suite.py", "toy", cwd=tmp_path).split()
    assert {"test_a_batch_arrives_in_order", "test_load_reaches_the_clients"} <= set(passed)
