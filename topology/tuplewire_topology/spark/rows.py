"""Rows into a topology on Spark, from a spout, and out of it: the bolts' output, reports, and a failure.

A stage has one result. So each bolt has a column of structs, which is null in the rows of other bolts. Dead
letters are rows of the result, too: at the workers, they would outlive their generation. Used by member.py,
running.py and submit.py. Owns no state. Not thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from tuplewire.errors import ConfigError, MessageError, TopologyError, TuplewireError
from tuplewire.spark.releases import arrow_schema, parse_schema
from tuplewire.text.events import LogRate, event_logger
from tuplewire_topology.authoring.collector import Emitted, SpoutOutputCollector
from tuplewire_topology.authoring.component import DeadLetter, Spout, TaskError, TopologyContext
from tuplewire_topology.authoring.description import ComponentKind, Topology
from tuplewire_topology.authoring.topology_settings import ErrorPolicy, TopologySettings
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM, SYSTEM_TASK, Stream, Tuple, TupleSource
from tuplewire_topology.running.statistics import ExecutorStatistics, Failure, ProcessFailedError
from tuplewire_topology.serial.serializer import from_values, to_values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

logger = event_logger(__name__)

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


def _as_json(message: Tuple) -> str:
    """Return the values by field as JSON; str() converts values that JSON does not support."""
    try:
        return json.dumps(message.as_dict(), default=str, ensure_ascii=False)
    except Exception:  # noqa: BLE001 - the user's objects may raise anything
        return json.dumps({name: f"<{type(each).__name__}>" for name, each in message.as_dict().items()})


def _printable(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode. A JSON parser restores them."""
    return text.encode(errors="backslashreplace").decode()


ROWS_KEY = "tuplewire.spark.rows"
"""The setting that holds the spout's batches of rows, its FailedRows, and the function for a dead letter."""
REPORT = "report"
FAILURE = "failure"
_BEGIN = "A topology has failed. "
_SEPARATOR = "\n-- its traceback:\n"
_END = "\n-- end of the traceback"
_ROWS = 10_000
_EXAMPLES = 5
_ERROR_CHARACTERS = 1000
_log_rate = LogRate()


@dataclass(slots=True)
class FailedRows:
    """The rows that a Rows spout has dropped after their last attempt.

    Attributes:
        rows: Their number. A row without an error was failed by a bolt, or timed out.
        examples: The first few rows of each PySpark task, as text.
        errors: The first few errors that the spouts and bolts of each PySpark task raised or reported.
        dead_letters: The number of rows and other tuples in TopologyResult.dead_letters.
    """

    rows: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    dead_letters: int = 0

    def add_error(self, error: TaskError) -> None:
        """Record an error of a spout or bolt."""
        if len(self.errors) < _EXAMPLES:
            self.errors.append(str(error)[:_ERROR_CHARACTERS])


class Rows(Spout):
    """Emits the rows of run_topology's DataFrame.

    Each PySpark task runs one task of this spout, which reads the PySpark task's partition. After its last
    attempt, a failed row is dropped, logged, and reported in the TopologyResult; with topology.error.policy
    `dead_letter`, it is also a dead letter. A row that only timed out may still be processed.

    Args:
        columns: The columns to emit, which are the fields of the spout.
        attempts: How often a row that fails is emitted, in total.

    Raises:
        TopologyError: No column is named, or `attempts` is not an integer from 1.
    """

    def __init__(self, *columns: str, attempts: int = 3) -> None:
        if not columns:
            raise TopologyError("a Rows spout needs the names of the columns that it emits")
        if type(attempts) is not int or attempts < 1:
            raise TopologyError(f"a Rows spout emits a row at least once: attempts cannot be {attempts!r}")
        self.outputs = columns
        self.attempts = attempts

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Take the rows of the PySpark task. Raises ConfigError outside Spark."""
        super().open(conf, context, collector)
        if ROWS_KEY not in conf:
            raise ConfigError(
                "a Rows spout runs on Spark alone: give run_topology the DataFrame, as rows=..., "
                "or build the topology with another spout"
            )
        self.batches, self.failed_rows, self.emit_dead_letter = conf[ROWS_KEY]
        self.emits_dead_letters = TopologySettings.from_conf(conf).error_policy is ErrorPolicy.DEAD_LETTER
        self.source = context.topology.source(context.task, DEFAULT_STREAM)
        self.rows: Iterator[tuple[Any, ...]] = iter(())
        self.ended = False
        self.emitted = 0
        self.on_the_way: dict[int, tuple[Any, ...]] = {}
        self.again: list[int] = []
        self.failures: Counter[int] = Counter()

    def next_tuple(self) -> None:
        if self.again:
            number = self.again.pop()
            self.collector.emit(self.on_the_way[number], message_id=number)
            return
        while (row := next(self.rows, None)) is None:
            batch = next(self.batches, None)
            if batch is None:
                self.ended = True
                return
            columns = [batch.column(name).to_pylist() for name in self.outputs]
            self.rows = zip(*columns, strict=True)
        self.emitted += 1
        self.on_the_way[self.emitted] = row
        self.collector.emit(row, message_id=self.emitted)

    @property
    def exhausted(self) -> bool:
        return self.ended and not self.again

    def ack(self, message_id: Any) -> None:
        del self.on_the_way[message_id]
        self.failures.pop(message_id, None)

    def fail(self, message_id: Any) -> None:
        self.failures[message_id] += 1
        if self.failures[message_id] < self.attempts:
            self.again.append(message_id)
            return
        del self.failures[message_id]
        values = self.on_the_way.pop(message_id)
        if self.emits_dead_letters:
            error = MaxAttemptsExceededError("bolts have failed the row, or it took too long")
            message = Tuple(values, self.source)
            told = TaskError(self.source.component, self.source.task, error, message)
            self.emit_dead_letter(DeadLetter(message, told, self.attempts))
        shown = map(reprlib.repr, values)
        row = ", ".join(f"{name}={value}" for name, value in zip(self.outputs, shown, strict=True))
        self.failed_rows.rows += 1
        if self.failed_rows.rows <= _EXAMPLES:
            self.failed_rows.examples.append(row)
        if count := _log_rate.due("rows given up"):
            extra = {"rows": count, "attempts": self.attempts, "last": row}
            logger.warning("spark.rows_failed", extra=extra)


def rows_spout(topology: Topology) -> str | None:
    """Return the id of the Rows spout, if any. Raises TopologyError if there are several."""
    found = [each.id for each in topology.components.values() if isinstance(each.template, Rows)]
    if len(found) > 1:
        raise TopologyError(
            f"{' and '.join(map(repr, found))} are Rows spouts, and a topology on Spark has one DataFrame: "
            "unite them, with a column that distinguishes them"
        )
    return found[0] if found else None


@dataclass(frozen=True)
class Output:
    """The bolts that return their default stream, and the schema of each; dead letters count as a bolt.

    texts: the bolts for which the user gave no schema: their fields are returned as strings.
    """

    schemas: Mapping[str, StructType]
    texts: frozenset[str]

    @classmethod
    def of(
        cls, topology: Topology, outputs: Mapping[str, str | StructType | None] | None, *, letters: bool
    ) -> Self:
        """Check the requested outputs; the default is each bolt without subscribers, as strings.

        letters: include dead letters. Raises TopologyError for unknown components or wrong schemas.
        """
        from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

        if outputs is None:
            outputs = {
                each.id: None
                for each in topology.components.values()
                if each.kind is ComponentKind.BOLT
                and any(stream.name == DEFAULT_STREAM for stream in each.streams)
                and not topology.targets_of(each.id)
            }
        schemas: dict[str, StructType] = {}
        for name, wanted in outputs.items():
            fields = topology.component(name).stream(DEFAULT_STREAM).fields
            if wanted is None:
                schema = StructType([StructField(field, StringType()) for field in fields])
            else:
                schema = parse_schema(wanted) if isinstance(wanted, str) else wanted
            if len(schema.fields) != len(fields):
                raise TopologyError(
                    f"the schema for {name!r} has the columns {', '.join(schema.names)}, and its tuples have "
                    f"the fields {', '.join(fields)}: name a column for each field, in their order"
                )
            schemas[name] = StructType([StructField(each.name, each.dataType) for each in schema.fields])
        if letters:
            kinds = dict.fromkeys(("task", "source_task", "tries"), IntegerType()) | {"time": TimestampType()}
            columns = [StructField(name, kinds.get(name, StringType())) for name in _SOURCE.stream.fields]
            schemas[DEAD_LETTERS] = StructType(columns)
        return cls(schemas, frozenset(name for name, wanted in outputs.items() if wanted is None))

    def stage_schema(self) -> StructType:
        """Return the schema of the stage's result."""
        from pyspark.sql.types import StringType, StructField, StructType

        columns = [StructField(_column(place), schema) for place, schema in enumerate(self.schemas.values())]
        return StructType([*columns, StructField(REPORT, StringType()), StructField(FAILURE, StringType())])

    def checked(self, stage: DataFrame) -> DataFrame:
        """Return the stage's rows after their shuffle, with a filter that fails the job for a failure row.

        Because of the shuffle, Spark runs the whole stage again if a process is lost. Failures of the user's
        code fail the job only after the shuffle, because a repetition would not help.
        """
        from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

        fails = F.when(F.col(FAILURE).isNotNull(), F.raise_error(F.col(FAILURE)).isNull())
        # Spark cannot move a filter before the shuffle if it depends on the partition.
        return stage.where(fails.otherwise(F.spark_partition_id() >= 0))

    def frames(self, result: DataFrame) -> dict[str, DataFrame]:
        """Return the rows of each bolt, and of DEAD_LETTERS if the schemas include it."""
        return {
            name: result.where(f"{_column(place)} IS NOT NULL").select(f"{_column(place)}.*")
            for place, name in enumerate(self.schemas)
        }

    def wants(self, run: Emitted) -> bool:
        """Return True if the result includes these tuples."""
        return run.source.stream.name == DEFAULT_STREAM and run.source.component in self.schemas


def _column(place: int) -> str:
    return f"output_{place}"


def failure_text(process: str, failure: Failure) -> str:
    """Return a failure as the job's error message, for users and for failure_in()."""
    return f"{_BEGIN}{process}: {failure.summary}{_SEPARATOR}{failure.traceback.rstrip()}{_END}"


def failure_in(text: str, topology: str) -> ProcessFailedError | None:
    """Return the failure that failure_text() has put into a Spark error, or None."""
    _, begun, rest = text.partition(_BEGIN)
    process, colon, rest = rest.partition(": ")
    summary, separated, rest = rest.partition(_SEPARATOR)
    traceback, ended, _ = rest.partition(_END)
    if not (begun and colon and separated and ended):
        return None
    return ProcessFailedError(f"{process} of topology {topology!r}", Failure(summary, traceback))


def reports_in(result: DataFrame) -> tuple[list[ExecutorStatistics], FailedRows]:
    """Return the statistics of all executors, and the dropped rows of all PySpark tasks."""
    executors: list[ExecutorStatistics] = []
    failed_rows = FailedRows()
    for row in result.where(f"{REPORT} IS NOT NULL").select(REPORT).collect():
        statistics, (rows, examples, errors, letters) = json.loads(row[REPORT])
        executors += [from_values(ExecutorStatistics, each) for each in statistics]
        failed_rows.rows += rows
        failed_rows.examples += examples
        failed_rows.errors += errors
        failed_rows.dead_letters += letters
    return executors, failed_rows


class Writer:
    """Builds record batches of Output.stage_schema()."""

    def __init__(self, output: Output) -> None:
        self._texts = output.texts
        self._schema = arrow_schema(output.stage_schema())
        self._kinds = dict(zip([*output.schemas, REPORT, FAILURE], self._schema.types, strict=True))

    def batches(self, runs: Sequence[Emitted]) -> Iterator[pa.RecordBatch]:
        """Yield tuples as record batches. Raises MessageError for a value that its column cannot hold."""
        rows: dict[str, list[Sequence[Any]]] = {}
        for run in runs:
            rows.setdefault(run.source.component, []).extend(message.values for message in run.tuples)
        for component, column in rows.items():
            for begin in range(0, len(column), _ROWS):
                values = self._struct(component, column[begin : begin + _ROWS])
                yield self._batch({component: values}, len(values))

    def report(self, statistics: Sequence[ExecutorStatistics], failed_rows: FailedRows) -> pa.RecordBatch:
        """Return a PySpark task's last row, with its executors' statistics and its dropped rows."""
        return self._batch({REPORT: json.dumps(to_values([statistics, failed_rows]))}, 1)

    def failure(self, rank: int, error: BaseException) -> pa.RecordBatch:
        """Return an error as the row that fails the job."""
        return self._batch({FAILURE: failure_text(f"PySpark task {rank}", Failure.of(error))}, 1)

    def _batch(self, columns: Mapping[str, Any], n_rows: int) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = []
        for name, kind in self._kinds.items():
            value = columns.get(name)
            if isinstance(value, str):
                value = pa.array([value], kind)
            arrays.append(pa.nulls(n_rows, kind) if value is None else value)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _struct(self, component: str, rows: Sequence[Sequence[Any]]) -> pa.StructArray:
        import pyarrow as pa

        fields = list(self._kinds[component])
        arrays = []
        for field, column in zip(fields, zip(*rows, strict=True), strict=True):
            try:
                values = list(map(_as_text, column)) if component in self._texts else column
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise MessageError(
                    f"the output of {component!r}: column {field.name!r} is {field.type} and cannot hold "
                    f"what the bolt has emitted ({error}); give a schema that fits, or emit what does"
                ) from error
        return pa.StructArray.from_arrays(arrays, fields=fields)


def _as_text(value: Any) -> str | None:
    if isinstance(value, bytes):
        raise TypeError("bytes have no form as text")
    return value if value is None or isinstance(value, str) else str(value)
