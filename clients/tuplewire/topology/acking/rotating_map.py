"""A map whose entries expire. Source: Storm's `RotatingMap`."""

from __future__ import annotations

from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

PARTS = 2
"""An entry lives for more than so many rotations, and at most one more."""


class RotatingMap(Generic[_Key, _Value]):
    """Entries in generations; each rotation begins one and gives up the oldest. Not thread-safe."""

    def __init__(self) -> None:
        self._newest: dict[_Key, _Value] = {}
        self._older: list[dict[_Key, _Value]] = [{} for _ in range(PARTS)]

    def __len__(self) -> int:
        return len(self._newest) + sum(map(len, self._older))

    def put(self, key: _Key, value: _Value) -> None:
        """Add an entry that is not there yet."""
        self._newest[key] = value

    def get(self, key: _Key) -> _Value | None:
        """Return a value; None where there is none."""
        value = self._newest.get(key)
        if value is None:
            for generation in self._older:
                if key in generation:
                    return generation[key]
        return value

    def pop(self, key: _Key) -> _Value | None:
        """Take an entry out, and return its value; None where there is none."""
        if key in self._newest:
            return self._newest.pop(key)
        for generation in self._older:
            if key in generation:
                return generation.pop(key)
        return None

    def rotate(self) -> dict[_Key, _Value]:
        """Begin a generation, and return the entries that are given up."""
        self._older.insert(0, self._newest)
        self._newest = {}
        return self._older.pop()
