"""Every public method has a docstring, its own or an inherited one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import FunctionType

import pytest

PACKAGES = ("tuplewire", "tuplewire_service", "tuplewire_demos")


def modules() -> Iterator[str]:
    """Give the name of every module that is imported, except generated ones."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if "_pb2" not in found.name and not found.name.endswith("__main__"):
                yield found.name


@pytest.mark.parametrize("name", list(modules()))
def test_public_methods_have_a_docstring(name: str) -> None:
    """A method has its own docstring or inherits one, as help() and editors show it."""
    module = importlib.import_module(name)
    missing = [
        f"{kind.__name__}.{member}"
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == name and not kind.__name__.startswith("_")
        for member, value in vars(kind).items()
        if not member.startswith("_")
        and isinstance(value, property | staticmethod | classmethod | FunctionType)
        and not inspect.getdoc(getattr(kind, member))
    ]
    assert missing == []
