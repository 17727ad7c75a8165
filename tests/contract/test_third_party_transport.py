"""A third-party transport in a separate package installs, is found, and passes the conformance kit."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.packaging import ROOT, build_wheel, install, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOY = ROOT / "tests" / "contract" / "toy"

FIND = """
import sys
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory

conf = {TRANSPORT_KEY: sys.argv[1], "tuplewire.transport.worker_id": "w7"}
context = TransportFactory.make_context(conf)
assert type(context).__module__ == "toy_transport.context", type(context)
server = context.bind("words", 0)
context.connect("words", "127.0.0.1", server.port).send(3, b"hello")
message = server.recv()
(count,) = server.statistics().received
context.term()
print("toy" in TransportFactory.known(), message.task, message.message.decode(), count.source)
"""


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install both wheels into an empty environment, and return its interpreter."""
    toy = build_wheel(TOY, tmp_path_factory.mktemp("toy"))
    return install(tmp_path_factory.mktemp("third-party"), wheel, toy) / "python"


@pytest.mark.parametrize(
    "name",
    [
        "toy",
        "toy_transport.context:ToyContext",
        "toy_transport.context.ToyContext",
        "toy_transport.context:ToyFactory",
        "toy_transport.context.ToyFactory",
    ],
    ids=["entry point", "class", "class with dots", "factory", "factory with dots"],
)
def test_found(python: Path, tmp_path: Path, name: str) -> None:
    """The setting accepts an entry point, an IContext or a factory; the context is prepared, and works."""
    assert run(python, "-c", FIND, name, cwd=tmp_path) == "True 3 hello w7\n"


@pytest.mark.long
def test_conforms(python: Path, tmp_path: Path) -> None:
    """The shipped kit passes without a test runner, in an environment with only the two wheels."""
    passed = run(python, TOY / "suite.py", "toy", cwd=tmp_path).split()
    assert {"test_a_batch_arrives_in_order", "test_load_reaches_the_clients"} <= set(passed)
