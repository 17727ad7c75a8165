"""Streams with declared fields, the tuples of tasks, and Tuplewire's own tuples: ticks, acks and fails.

Used by all parts of a topology. Owns no state. Not thread-safe. The emitting executor may change a tuple's
`roots` and `trace` until it sends the tuple. Source: Storm's `StreamInfo`, `Fields`, `TupleImpl`,
`MessageId`. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tuplewire.errors import TopologyError
from tuplewire.text.formatting import encodable

DEFAULT_STREAM = "default"
"""The stream of emits and subscriptions without a stream name."""


@dataclass(frozen=True, slots=True, init=False)
class Stream:
    """A declared stream with ordered fields.

    Args:
        direct: The emitter selects the target task of each tuple, by emit_direct().

    Raises:
        TopologyError: There is a duplicate field, or a name that is not a string or is empty.
    """

    fields: tuple[str, ...]
    name: str
    direct: bool

    def __init__(self, *fields: str, name: str = DEFAULT_STREAM, direct: bool = False) -> None:
        check_name(name, "a stream's name")
        for field in fields:
            check_name(field, f"a field's name in stream {name!r}")
        if len(set(fields)) < len(fields):
            duplicate = next(field for field in fields if fields.count(field) > 1)
            raise TopologyError(f"stream {name!r} declares the field {duplicate!r} twice")
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "direct", direct)

    def positions(self, fields: Iterable[str]) -> tuple[int, ...]:
        """Return the positions of fields in a tuple. Raises TopologyError for an undeclared field."""
        for field in (names := tuple(fields)):
            if field not in self.fields:
                known = ", ".join(self.fields) or "none"
                raise TopologyError(f"stream {self.name!r} has no field {field!r}; it declares {known}")
        return tuple(map(self.fields.index, names))


def check_name(name: object, subject: str) -> None:
    """Raise TopologyError if a name is not a string, or is empty, or cannot be encoded as UTF-8."""
    if not isinstance(name, str) or not name:
        raise TopologyError(f"{subject} is text of at least one character, not {name!r}")
    if encodable(name) != name:
        raise TopologyError(f"{subject} is text that UTF-8 can encode, not {name!r}")


Roots: TypeAlias = tuple[tuple[int, Any], ...]
"""The roots of a tuple: pairs of (spout's task, spout's message id). Empty for an untracked tuple.

Anchors pass the roots from a bolt's input to its output. With acker tasks, a pair is (acker's task, 16 bytes:
ids of the root and the tuple), which the executor sets before it sends the tuple.
"""

NO_ROOTS: Roots = ()

SYSTEM_COMPONENT = "__system"
SYSTEM_TASK = -1
TICK_STREAM = "__tick"
INIT_STREAM = "__ack_init"
ACK_STREAM = "__ack_ack"
FAIL_STREAM = "__ack_fail"


StreamId = tuple[str, str]
"""A component and the name of one of its streams. Source: Storm's `GlobalStreamId`."""


class TupleSource:
    """The task and stream of a tuple. All tuples of a task's stream share one object.

    `wire_id` is the source as text, unique in a topology. `field_indexes` maps fields to positions.
    """

    __slots__ = ("component", "field_indexes", "stream", "stream_id", "task", "wire_id")

    def __init__(self, component: str, task: int, stream: Stream) -> None:
        self.component = component
        self.task = task
        self.stream = stream
        self.stream_id: StreamId = component, stream.name
        self.wire_id = f"{task}:{component}:{stream.name}"
        self.field_indexes: dict[str | int, int] = {field: at for at, field in enumerate(stream.fields)}

    def __repr__(self) -> str:
        return f"<TupleSource: task {self.task} of {self.component!r}, stream {self.stream.name!r}>"


class Tuple:
    """Immutable values in the order of their stream's fields.

    Read one value by `tuple["word"]` or `tuple[0]`, and all values by `word, count = tuple`. Equality is
    identity, as in Storm; to compare contents, compare `values`.

    Attributes:
        values: The values, as a Python tuple.
        roots: The tuples of spouts that this tuple results from; empty: it is not tracked.
    """

    __slots__ = ("roots", "source", "trace", "values")

    def __init__(self, values: Sequence[Any], source: TupleSource, roots: Roots = NO_ROOTS) -> None:
        self.values = tuple(values)
        self.source = source
        self.roots = roots
        self.trace: tuple[bytes, int] | None = None
        """If traced, the emitter's context, and the time of the emit or of the receipt, in ns since 1970."""

    @property
    def source_component(self) -> str:
        """The id of the emitting component."""
        return self.source.component

    @property
    def source_task(self) -> int:
        """The emitting task."""
        return self.source.task

    @property
    def source_stream(self) -> str:
        """The name of the stream."""
        return self.source.stream.name

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the values."""
        return self.source.stream.fields

    @property
    def is_tick(self) -> bool:
        """True for a tick, which is sent by a timer, not by a component."""
        return self.source.stream.name == TICK_STREAM and self.source.component == SYSTEM_COMPONENT

    @property
    def is_final_tick(self) -> bool:
        """True for a bolt's last tick, at the end of the topology. Its rate_secs is 0."""
        return self.is_tick and not self.values[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the values by field."""
        return dict(zip(self.fields, self.values, strict=True))

    def __getitem__(self, field: str | int) -> Any:
        try:
            return self.values[self.source.field_indexes.get(field, field)]  # type: ignore[arg-type]
        except TypeError:
            known = ", ".join(self.fields)
            raise KeyError(f"{field!r} is not a field of {self.source!r}; it has {known}") from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        shown = (f"{field}={_repr(value)}" for field, value in zip(self.fields, self.values, strict=False))
        return f"<Tuple {self.source.wire_id} {' '.join(shown)}>"


def _repr(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an int with more digits than Python prints
        return f"<{type(value).__name__}>"


_TICK_SOURCE = TupleSource(SYSTEM_COMPONENT, SYSTEM_TASK, Stream("rate_secs", name=TICK_STREAM))


def tick(seconds: float) -> Tuple:
    """Return a tick tuple. `seconds` is the interval between ticks, or 0 for the last tick."""
    return Tuple([seconds], _TICK_SOURCE)


_ACK_SOURCE = TupleSource(SYSTEM_COMPONENT, SYSTEM_TASK, Stream("id", name=ACK_STREAM))
_FAIL_SOURCE = TupleSource(SYSTEM_COMPONENT, SYSTEM_TASK, Stream("id", name=FAIL_STREAM))


def outcome_tuple(message_id: Any, *, processed: bool) -> Tuple:
    """Return the tuple that reports the outcome of a spout's tuple to the spout."""
    return Tuple([message_id], _ACK_SOURCE if processed else _FAIL_SOURCE)


@dataclass(frozen=True, slots=True)
class AddressedTuples:
    """Tuples for one task, in order. Source: Storm's `AddressedTuple`, as a column."""

    task: int
    tuples: Sequence[Tuple]
    on_executed: Callable[[], None] | None = None  # called in the executor's thread once all are processed
