"""Dead letters of a topology on Spark: rows of its result, as the output of a bolt is.

So they are those of one generation, as the result is. A letter in the workers would outlive the attempt that
wrote it.
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

LETTERS = "__dead_letters"
"""What they go by among the outputs; no component has such a name."""

_MOST_REASON = 1000
_SOURCE = TupleSource(
    LETTERS,
    SYSTEM_TASK,
    Stream(
        "component", "task", "source_component", "source_task", "stream", "tries", "reason", "time", "tuple"
    ),
)


class GivenUpError(TuplewireError):
    """A row of a Rows spout has failed as often as it may."""


def letters_schema() -> StructType:
    """Return the columns of dead letters."""
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

    kinds = {"task": IntegerType, "source_task": IntegerType, "tries": IntegerType, "time": TimestampType}
    return StructType([StructField(name, kinds.get(name, StringType)()) for name in _SOURCE.stream.fields])


def keeps_letters(topology: Topology, conf: Mapping[str, Any]) -> bool:
    """Whether tuples of some component become dead letters."""
    return any(
        TopologySettings.from_conf({**conf, **component.configuration}).error_policy
        is ErrorPolicy.DEAD_LETTER
        for component in topology.components.values()
    )


def as_output(letter: DeadLetter) -> Emitted:
    """Return a dead letter as what a bolt has emitted."""
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


def row_letter(message: Tuple, attempts: int) -> DeadLetter:
    """Return a row that a Rows spout gives up."""
    error = GivenUpError("bolts have failed the row, or it took too long")
    told = TaskError(message.source_component, message.source_task, error, message)
    return DeadLetter(message, told, attempts)


def _as_json(message: Tuple) -> str:
    """Return the values by field; what JSON does not have is text, as str() writes it."""
    try:
        return json.dumps(message.as_dict(), default=str, ensure_ascii=False)
    except Exception:  # noqa: BLE001 - the user's objects may raise anything
        return json.dumps({name: f"<{type(each).__name__}>" for name, each in message.as_dict().items()})


def _printable(text: str) -> str:
    """Return text that has a form in UTF-8; in JSON it reads as what it was."""
    return text.encode(errors="backslashreplace").decode()
