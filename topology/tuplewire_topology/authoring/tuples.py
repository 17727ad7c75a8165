"""Streams with declared fields, and the tuples that tasks emit on them.

Source: Storm's `StreamInfo`, `Fields`, `Tuple`, `TupleImpl`, `MessageId`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

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


MessageId: TypeAlias = tuple[tuple[int, Any], ...]
"""What a tuple descends from: (task of the spout, the message id that it gave) for each of its roots.

Empty for a tuple that nobody waits for. A bolt hands it on by anchoring what it emits. Where acker tasks
follow tuples it is (task of the acker, 16 bytes: the root's id and the tuple's own) for each root; the
executor gives it before the tuple is on its way.
"""

UNANCHORED: MessageId = ()

SYSTEM_COMPONENT = "__system"
SYSTEM_TASK = -1
TICK_STREAM = "__tick"
INIT_STREAM = "__ack_init"
ACK_STREAM = "__ack_ack"
FAIL_STREAM = "__ack_fail"


class TupleSource:
    """Who emitted a tuple, and on which stream; one object for all tuples of a task's stream.

    key: the same as text, which no other task and stream of a topology have. positions: of the fields.
    """

    __slots__ = ("component", "key", "positions", "stream", "task")

    def __init__(self, component: str, task: int, stream: Stream) -> None:
        self.component = component
        self.task = task
        self.stream = stream
        self.key = f"{task}:{component}:{stream.name}"
        self.positions: dict[str | int, int] = {field: at for at, field in enumerate(stream.fields)}

    def __repr__(self) -> str:
        return f"<TupleSource: task {self.task} of {self.component!r}, stream {self.stream.name!r}>"


class Tuple:
    """Values in the order of their stream's fields; never changed once made.

    `tuple["word"]` and `tuple[0]` are one value, `word, count = tuple` takes all. Two tuples are equal only
    when they are one object, as Storm's are; to compare what they carry, compare `values`.
    """

    __slots__ = ("message_id", "source", "trace", "values")

    def __init__(
        self, values: Sequence[Any], source: TupleSource, message_id: MessageId = UNANCHORED
    ) -> None:
        self.values = tuple(values)
        self.source = source
        self.message_id = message_id
        self.trace: tuple[bytes, int] | None = None
        """Where it belongs to a trace: the context of what has emitted it, and when, in ns since 1970."""

    @property
    def source_component(self) -> str:
        """The id of the component that emitted it."""
        return self.source.component

    @property
    def source_task(self) -> int:
        """The task that emitted it."""
        return self.source.task

    @property
    def source_stream(self) -> str:
        """The name of the stream that it was emitted on."""
        return self.source.stream.name

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the values."""
        return self.source.stream.fields

    @property
    def is_tick(self) -> bool:
        """Whether it only says that time has passed, and comes from no component of the topology."""
        return self.source.stream.name == TICK_STREAM and self.source.component == SYSTEM_COMPONENT

    @property
    def is_last_tick(self) -> bool:
        """Whether it is the tick that a bolt gets when its topology is over; its rate_secs is 0."""
        return self.is_tick and not self.values[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the values by field."""
        return dict(zip(self.fields, self.values, strict=True))

    def __getitem__(self, field: str | int) -> Any:
        try:
            return self.values[self.source.positions.get(field, field)]  # type: ignore[arg-type]
        except TypeError:
            raise KeyError(
                f"{field!r} is no field of {self.source!r}; it has {', '.join(self.fields)}"
            ) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        shown = (f"{field}={_shown(value)}" for field, value in zip(self.fields, self.values, strict=False))
        return f"<Tuple {self.source.key} {' '.join(shown)}>"


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an int of more digits than Python prints
        return f"<{type(value).__name__}>"


_TICK = Stream("rate_secs", name=TICK_STREAM)
_TICK_SOURCE = TupleSource(SYSTEM_COMPONENT, SYSTEM_TASK, _TICK)


def tick(seconds: float) -> Tuple:
    """Return the tuple that tells a bolt how often it gets one, in seconds; 0: this is the last."""
    return Tuple([seconds], _TICK_SOURCE)


_ACK_SOURCE = TupleSource(SYSTEM_COMPONENT, SYSTEM_TASK, Stream("id", name=ACK_STREAM))
_FAIL_SOURCE = TupleSource(SYSTEM_COMPONENT, SYSTEM_TASK, Stream("id", name=FAIL_STREAM))


def fate(message_id: Any, *, processed: bool) -> Tuple:
    """Return the tuple that tells a spout what has become of one of its own."""
    return Tuple([message_id], _ACK_SOURCE if processed else _FAIL_SOURCE)


@dataclass(frozen=True, slots=True)
class AddressedTuples:
    """Tuples for one task, in order. Source: Storm's `AddressedTuple`, as a column.

    done: called by the executor, in its thread, once all of them are processed; None: nobody asks.
    """

    task: int
    tuples: Sequence[Tuple]
    done: Callable[[], None] | None = None
