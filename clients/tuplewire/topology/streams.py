"""Streams: what a component emits on, each with declared fields. Source: Storm's `StreamInfo`, `Fields`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuplewire.errors import TopologyError

DEFAULT_STREAM = "default"
"""The stream of an emit that names none."""


@dataclass(frozen=True, slots=True, init=False)
class Stream:
    """A stream that a component declares: its fields, in order, and its name.

    direct: its emitter names the task that gets each tuple (`emit_direct`).
    Raises TopologyError for a name that is no text, or empty, or for a field twice.
    """

    fields: tuple[str, ...]
    name: str
    direct: bool

    def __init__(self, *fields: str, name: str = DEFAULT_STREAM, direct: bool = False) -> None:
        check_name(name, "a stream's name")
        for field in fields:
            check_name(field, f"a field's name in stream {name!r}")
        if len(set(fields)) < len(fields):
            twice = next(field for field in fields if fields.count(field) > 1)
            raise TopologyError(f"stream {name!r} declares the field {twice!r} twice")
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "direct", direct)

    def positions(self, fields: Iterable[str]) -> tuple[int, ...]:
        """Return where fields are among the values of a tuple; TopologyError for one that is not declared."""
        found = []
        for field in fields:
            if field not in self.fields:
                raise TopologyError(
                    f"stream {self.name!r} has no field {field!r}; "
                    f"it declares {', '.join(self.fields) or 'none'}"
                )
            found.append(self.fields.index(field))
        return tuple(found)


def check_name(name: object, what: str) -> str:
    """Return a name; TopologyError for what is no text, or empty."""
    if not isinstance(name, str) or not name:
        raise TopologyError(f"{what} is text of at least one character, not {name!r}")
    return name
