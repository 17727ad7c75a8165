"""Every public method has a docstring, its own or an inherited one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import FunctionType

PACKAGES = ("tuplewire", "tuplewire_service", "tuplewire_demos")


def test_public_methods_have_a_docstring() -> None:
    """A method has its own docstring or inherits one, as help() and editors show it."""
    missing = [
        f"{found.name}.{kind.__name__}.{member}"
        for package in PACKAGES
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        if "_pb2" not in found.name and not found.name.endswith("__main__")
        for kind in vars(importlib.import_module(found.name)).values()
        if inspect.isclass(kind) and kind.__module__ == found.name and not kind.__name__.startswith("_")
        for member, value in vars(kind).items()
        if not member.startswith("_")
        and isinstance(value, property | staticmethod | classmethod | FunctionType)
        and not inspect.getdoc(getattr(kind, member))
    ]
    assert missing == []
