"""The default of every numeric field in the core's records is zero."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

import tuplewire.session
import tuplewire_service.worker
from tuplewire.settings.settings import Settings
from tuplewire.values import group


def modules() -> Iterator[ModuleType]:
    """Yield the modules of the core."""
    yield group
    for package in (tuplewire.session, tuplewire_service.worker):
        for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield import_module(each.name)


def numbers() -> Iterator[tuple[str, str, float]]:
    """Yield the default of each numeric field of a record."""
    for module in modules():
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ != module.__name__ or not dataclasses.is_dataclass(kind):
                continue
            if issubclass(kind, Settings):
                continue
            for field in dataclasses.fields(kind):
                if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                    yield name, field.name, field.default


@pytest.mark.parametrize(("kind", "field", "value"), list(numbers()))
def test_it_is_zero(kind: str, field: str, value: float) -> None:
    """No record starts with another number."""
    assert value == 0, f"{kind}.{field}"
