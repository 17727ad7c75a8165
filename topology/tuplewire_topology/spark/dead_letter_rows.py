"""Dead letters of a topology on Spark. They are rows of its result, like the output of a bolt.

So they are from the same generation as the result. Dead letters at the workers would outlive their attempt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tuplewire.errors import TuplewireError
from tuplewire_topology.authoring.collector import Emitted
from tuplewire_topology.authoring.component import DeadLetter, TaskError
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.topology_settings import ErrorPolicy, TopologySettings
from tuplewire_topology.authoring.tuples import SYSTEM_TASK, Stream, Tuple, TupleSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DEAD_LETTERS = "__dead_letters"
"""The name of the dead letters among the outputs. Components cannot have it: `__` is reserved."""

_MOST_REASON = 1000
_SOURCE = TupleSource(
    DEAD_LETTERS,
    SYSTEM_TASK,
    Stream(
        "component", "task", "source_component", "source_task", "stream", "tries", "reason", "time", "tuple"
    ),
)


class MaxAttemptsExceededError(TuplewireError):
    """A row of a Rows spout has failed in its last attempt."""


def dead_letters_schema() -> StructType:
    """Return the schema of dead letters."""
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

    kinds = {"task": IntegerType, "source_task": IntegerType, "tries": IntegerType, "time": TimestampType}
    return StructType([StructField(name, kinds.get(name, StringType)()) for name in _SOURCE.stream.fields])


def has_dead_letters(topology: Topology, conf: Mapping[str, Any]) -> bool:
    """Return True if tuples of any component can become dead letters."""
    return any(
        TopologySettings.from_conf({**conf, **component.configuration}).error_policy
        is ErrorPolicy.DEAD_LETTER
        for component in topology.components.values()
    )


def as_output(letter: DeadLetter) -> Emitted:
    """Return a dead letter as a tuple that a bolt emits."""
    error, message = letter.error, letter.tuple
    values = (
        error.component,
        error.task,
        message.source_component,
        message.source_task,
        message.source_stream,
        letter.tries,
        _printable(letter.reason[:_MOST_REASON]),
        datetime.now(UTC),
        _printable(_as_json(message)),
    )
    return Emitted(_SOURCE, None, [Tuple(values, _SOURCE)])


def row_dead_letter(message: Tuple, attempts: int) -> DeadLetter:
    """Return the dead letter of a row that failed in its last attempt."""
    error = MaxAttemptsExceededError("bolts have failed the row, or it took too long")
    told = TaskError(message.source_component, message.source_task, error, message)
    return DeadLetter(message, told, attempts)


def _as_json(message: Tuple) -> str:
    """Return the values by field as JSON; str() converts values that JSON does not support."""
    try:
        return json.dumps(message.as_dict(), default=str, ensure_ascii=False)
    except Exception:  # noqa: BLE001 - the user's objects may raise anything
        return json.dumps({name: f"<{type(each).__name__}>" for name, each in message.as_dict().items()})


def _printable(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode. A JSON parser restores them."""
    return text.encode(errors="backslashreplace").decode()
