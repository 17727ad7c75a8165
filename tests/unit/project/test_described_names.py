"""Names in docstrings, comments and pages exist: parameters, attributes, and `Class.attribute`."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("tuplewire", "tuplewire_service", "tuplewire_topology", "tuplewire_demos")
MODULES = [path for path in ROOT.glob("[cdst]*/**/*.py") if "_pb2" not in path.name]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("proto/**/*.proto")]
PROSE = re.compile(r'""".*?"""|#[^\n]*', re.DOTALL)
DESCRIBED = re.compile(r"(?:^ *|[.;] )`?([a-z_]+(?:, [a-z_]+)*)`?: ", re.MULTILINE)
VALUES = {"default", "empty", "null"}  # described in the same way
OF_STORM = re.compile(r"Source: .*?(?:\.\s|\Z)|\*\*[^*]+\*\*", re.DOTALL)


@cache
def names_by_class() -> dict[str, set[str]]:
    """Return the attributes of each class, and the parameters of its constructor."""
    found = defaultdict[str, set[str]](set)
    for node in (node for path in MODULES for node in ast.walk(ast.parse(path.read_bytes()))):
        if isinstance(node, ast.ClassDef):
            found[node.name].update(own_names(node))
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                found[name].update(getattr(getattr(kind, "DESCRIPTOR", None), "fields_by_name", ()))
                found[name].update(*({*dir(base), *found.get(base.__name__, ())} for base in kind.__mro__))
    return found


def own_names(kind: ast.ClassDef) -> Iterator[str]:
    """Yield the names of methods, attributes and fields, and the parameters of the constructor."""
    for node in ast.walk(kind):
        match node:
            case ast.FunctionDef(name="__init__"):
                yield from (each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg))
            case ast.FunctionDef(name=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def test_described_names_are_parameters_or_attributes() -> None:
    """Names before a colon, in a block or in a sentence, are parameters, or attributes of the class."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                nodes = () if isinstance(node, ast.ClassDef) else ast.walk(node.args)
                known = VALUES.union(each.arg for each in nodes if isinstance(each, ast.arg))
                text = re.sub(r"(?<!\n)\n(?!\n|    \w)\s*", " ", ast.get_docstring(node) or "")
                names = {name for names in DESCRIBED.findall(text) for name in names.split(", ")}
                assert names - known <= names_by_class().get(node.name, set()), f"{path}:{node.lineno}"


def test_attributes_of_classes_exist() -> None:
    """Each `Class.attribute` in prose exists, except where the class is Storm's or is not used here."""
    for path in (*MODULES, *PAGES):
        text = path.read_text(encoding="utf-8")
        text = "\n".join(PROSE.findall(text)) if path.suffix == ".py" else text
        for name, attribute in re.findall(r"(?<![\w.])([A-Z]\w+)\.(\w+)\b(?!\.\w)", OF_STORM.sub("", text)):
            assert attribute in names_by_class().get(name, {attribute}), f"{path}: {name}.{attribute}"
