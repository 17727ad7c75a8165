"""Rows into a topology on Spark, from a spout, and out of it: the bolts' output, reports, and a failure.

A stage has one result. So each bolt has a column of structs, which is null in the rows of other bolts. Dead
letters are rows of the result, too: at the workers, they would outlive their generation. Used by member.py,
submit.py and topology.py. Owns the rate of log lines. Not thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from tuplewire.errors import ConfigError, MessageError, TopologyError, TuplewireError
from tuplewire.spark.features import arrow_schema, parse_schema
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.text.formatting import encodable
from tuplewire_topology.authoring.collector import EmittedTuples, SpoutOutputCollector
from tuplewire_topology.authoring.component import DeadLetter, Spout, TaskError, TopologyContext
from tuplewire_topology.authoring.description import ComponentKind, Topology
from tuplewire_topology.authoring.topology_settings import ErrorPolicy, TopologySettings
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM, SYSTEM_TASK, Stream, Tuple, TupleSource
from tuplewire_topology.running.statistics import ExecutorStatistics, Failure, ProcessFailedError
from tuplewire_topology.serial.serializer import from_lists, to_lists

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

logger = event_logger(__name__)

DEAD_LETTERS = "__dead_letters"
"""The name of the dead letters among the outputs. Components cannot have it: `__` is reserved."""

_MAX_REASON_CHARACTERS = 1000
_REJECTED = TupleSource(
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


def as_tuples(letter: DeadLetter) -> EmittedTuples:
    """Return a dead letter as an emitted tuple of the component DEAD_LETTERS."""
    error, message = letter.error, letter.tuple
    values = (
        error.component,
        error.task,
        message.source_component,
        message.source_task,
        message.source_stream,
        letter.tries,
        encodable(letter.reason[:_MAX_REASON_CHARACTERS]),
        datetime.now(UTC),
        encodable(_as_json(message)),  # a JSON parser restores the characters
    )
    return EmittedTuples(_REJECTED, None, [Tuple(values, _REJECTED)])


def _as_json(message: Tuple) -> str:
    """Return the values by field as JSON; str() converts values that JSON does not support."""
    try:
        return json.dumps(message.as_dict(), default=str, ensure_ascii=False)
    except Exception:  # noqa: BLE001 - the user's objects may raise anything
        return json.dumps({name: f"<{type(each).__name__}>" for name, each in message.as_dict().items()})


ROWS_KEY = "tuplewire.spark.rows"
"""The setting that holds the spout's batches of rows, its FailedRows, and the function for a dead letter."""
REPORT = "report"
FAILURE = "failure"
_BEGIN = "A topology has failed. "
_SEPARATOR = "\n-- its traceback:\n"
_END = "\n-- end of the traceback"
_MAX_BATCH_ROWS = 10_000
_MAX_EXAMPLES = 5
_ERROR_CHARACTERS = 1000
_log_rate = LogRateLimiter()


@dataclasses.dataclass(slots=True)
class FailedRows:
    """The dropped rows of a Rows spout, and the errors and dead letters of the topology.

    Attributes:
        count: Their number. A row can fail without an error: a bolt failed it, or it timed out.
        examples: The first few rows of each PySpark task, as text.
        errors: The first few errors that the spouts and bolts of each PySpark task raised or reported.
        dead_letter_count: The number of rows and other tuples in TopologyResult.dead_letters.
    """

    count: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    dead_letter_count: int = 0

    def add_error(self, error: TaskError) -> None:
        """Record an error of a spout or bolt."""
        if len(self.errors) < _MAX_EXAMPLES:
            self.errors.append(str(error)[:_ERROR_CHARACTERS])


class Rows(Spout):
    """Emits the rows of run_topology's DataFrame.

    Each PySpark task runs one task of this spout, which reads the PySpark task's partition. After its last
    attempt, a failed row is dropped, logged, and reported in the TopologyResult; with topology.error.policy
    `dead_letter`, it is also a dead letter. A row that only timed out may still be processed.

    Args:
        columns: The columns to emit, which are the fields of the spout.
        attempts: The maximum number of times that a row is emitted.

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
                "a Rows spout runs only on Spark: pass the DataFrame to run_topology as rows=..., "
                "or build the topology with another spout"
            )
        self.arrow_batches, self.failed_rows, self.on_dead_letter = conf[ROWS_KEY]
        self.keeps_dead_letters = TopologySettings.from_conf(conf).error_policy is ErrorPolicy.DEAD_LETTER
        self.source = context.topology.source(context.task, DEFAULT_STREAM)
        self.rows: Iterator[tuple[Any, ...]] = iter(())
        self.is_input_exhausted = False
        self.last_row_number = 0
        self.in_flight: dict[int, tuple[Any, ...]] = {}
        self.retry_numbers: list[int] = []
        self.failures: Counter[int] = Counter()

    def next_tuple(self) -> None:
        if self.retry_numbers:
            number = self.retry_numbers.pop()
            self.collector.emit(self.in_flight[number], message_id=number)
            return
        while (row := next(self.rows, None)) is None:
            batch = next(self.arrow_batches, None)
            if batch is None:
                self.is_input_exhausted = True
                return
            self.rows = zip(*(batch.column(name).to_pylist() for name in self.outputs), strict=True)
        self.last_row_number += 1
        self.in_flight[self.last_row_number] = row
        self.collector.emit(row, message_id=self.last_row_number)

    @property
    def exhausted(self) -> bool:
        return self.is_input_exhausted and not self.retry_numbers

    def ack(self, message_id: Any) -> None:
        del self.in_flight[message_id]
        self.failures.pop(message_id, None)

    def fail(self, message_id: Any) -> None:
        self.failures[message_id] += 1
        if self.failures[message_id] < self.attempts:
            self.retry_numbers.append(message_id)
            return
        del self.failures[message_id]
        values = self.in_flight.pop(message_id)
        if self.keeps_dead_letters:
            error = MaxAttemptsExceededError("bolts have failed the row, or it took too long")
            message = Tuple(values, self.source)
            task_error = TaskError(self.source.component, self.source.task, error, message)
            self.on_dead_letter(DeadLetter(message, task_error, self.attempts))
        shown = map(reprlib.repr, values)
        row = ", ".join(f"{name}={value}" for name, value in zip(self.outputs, shown, strict=True))
        self.failed_rows.count += 1
        if self.failed_rows.count <= _MAX_EXAMPLES:
            self.failed_rows.examples.append(row)
        if count := _log_rate.count_event("rows given up"):
            logger.warning("spark.rows_failed", extra={"rows": count, "attempts": self.attempts, "row": row})


def rows_spout(topology: Topology) -> str | None:
    """Return the id of the Rows spout, if any. Raises TopologyError if there are several."""
    found = [each.id for each in topology.components.values() if isinstance(each.prototype, Rows)]
    if len(found) > 1:
        raise TopologyError(
            f"{' and '.join(map(repr, found))} are Rows spouts, and a topology on Spark has one DataFrame: "
            "unite them, with a column that distinguishes them"
        )
    return found[0] if found else None


@dataclasses.dataclass(frozen=True)
class Output:
    """The bolts that return their default stream, and the schema of each; dead letters count as a bolt.

    as_strings: the bolts for which the user gave no schema: their fields are returned as strings.
    """

    schemas: Mapping[str, StructType]
    as_strings: frozenset[str]

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
                and not topology.subscribers_of(each.id)
            }
        schemas: dict[str, StructType] = {}
        for name, requested in outputs.items():
            fields = topology.component(name).stream(DEFAULT_STREAM).fields
            if requested is None:
                schema = StructType([StructField(field, StringType()) for field in fields])
            else:
                schema = parse_schema(requested) if isinstance(requested, str) else requested
            if len(schema.fields) != len(fields):
                raise TopologyError(
                    f"the schema for {name!r} has the columns {', '.join(schema.names)}, and its tuples have "
                    f"the fields {', '.join(fields)}: name a column for each field, in their order"
                )
            schemas[name] = StructType([StructField(each.name, each.dataType) for each in schema.fields])
        if letters:
            kinds = dict.fromkeys(("task", "source_task", "tries"), IntegerType()) | {"time": TimestampType()}
            columns = [StructField(name, kinds.get(name, StringType())) for name in _REJECTED.stream.fields]
            schemas[DEAD_LETTERS] = StructType(columns)
        return cls(schemas, frozenset(name for name, requested in outputs.items() if requested is None))

    def stage_schema(self) -> StructType:
        """Return the schema of the stage's result."""
        from pyspark.sql.types import StringType, StructField, StructType

        columns = [StructField(_column(index), schema) for index, schema in enumerate(self.schemas.values())]
        return StructType([*columns, StructField(REPORT, StringType()), StructField(FAILURE, StringType())])

    def with_check(self, stage: DataFrame) -> DataFrame:
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
            name: result.where(f"{_column(index)} IS NOT NULL").select(f"{_column(index)}.*")
            for index, name in enumerate(self.schemas)
        }

    def includes(self, emitted: EmittedTuples) -> bool:
        """Return True if the result includes these tuples."""
        return emitted.source.stream.name == DEFAULT_STREAM and emitted.source.component in self.schemas


def _column(index: int) -> str:
    return f"output_{index}"


def encode_failure(process: str, failure: Failure) -> str:
    """Return a failure as the job's error message, for users and for decode_failure()."""
    return f"{_BEGIN}{process}: {failure.summary}{_SEPARATOR}{failure.traceback.rstrip()}{_END}"


def decode_failure(text: str, topology: str) -> ProcessFailedError | None:
    """Return the failure that encode_failure() has put into a Spark error, or None."""
    _, begun, remainder = text.partition(_BEGIN)
    process, colon, remainder = remainder.partition(": ")
    summary, separated, remainder = remainder.partition(_SEPARATOR)
    traceback, has_end, _ = remainder.partition(_END)
    if not (begun and colon and separated and has_end):
        return None
    return ProcessFailedError(f"{process} of topology {topology!r}", Failure(summary, traceback))


def collect_reports(result: DataFrame) -> tuple[list[ExecutorStatistics], FailedRows]:
    """Return the statistics of all executors, and the dropped rows of all PySpark tasks."""
    executors: list[ExecutorStatistics] = []
    failed_rows = FailedRows()
    for row in result.where(f"{REPORT} IS NOT NULL").select(REPORT).collect():
        statistics, (rows, examples, errors, dead_letter_count) = json.loads(row[REPORT])
        executors += [from_lists(ExecutorStatistics, each) for each in statistics]
        failed_rows.count += rows
        failed_rows.examples += examples
        failed_rows.errors += errors
        failed_rows.dead_letter_count += dead_letter_count
    return executors, failed_rows


class Batcher:
    """Builds record batches of Output.stage_schema()."""

    def __init__(self, output: Output) -> None:
        self._as_strings = output.as_strings
        self._schema = arrow_schema(output.stage_schema())
        self._column_types = dict(zip([*output.schemas, REPORT, FAILURE], self._schema.types, strict=True))

    def batches(self, emitted: Sequence[EmittedTuples]) -> Iterator[pa.RecordBatch]:
        """Yield tuples as record batches. Raises MessageError for a value that its column cannot hold."""
        rows: dict[str, list[Sequence[Any]]] = {}
        for batch in emitted:
            rows.setdefault(batch.source.component, []).extend(message.values for message in batch.tuples)
        for component, component_rows in rows.items():
            for begin in range(0, len(component_rows), _MAX_BATCH_ROWS):
                values = self._make_struct(component, component_rows[begin : begin + _MAX_BATCH_ROWS])
                yield self._make_batch({component: values}, len(values))

    def report(self, statistics: Sequence[ExecutorStatistics], failed_rows: FailedRows) -> pa.RecordBatch:
        """Return a PySpark task's last row, with its executors' statistics and its dropped rows."""
        return self._make_batch({REPORT: json.dumps(to_lists([statistics, failed_rows]))}, 1)

    def failure(self, rank: int, error: BaseException) -> pa.RecordBatch:
        """Return an error as the row that fails the job."""
        return self._make_batch({FAILURE: encode_failure(f"PySpark task {rank}", Failure.of(error))}, 1)

    def _make_batch(self, columns: Mapping[str, Any], n_rows: int) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = []
        for name, kind in self._column_types.items():
            value = columns.get(name)
            if isinstance(value, str):
                value = pa.array([value], kind)
            arrays.append(pa.nulls(n_rows, kind) if value is None else value)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _make_struct(self, component: str, rows: Sequence[Sequence[Any]]) -> pa.StructArray:
        import pyarrow as pa

        fields = list(self._column_types[component])
        arrays = []
        for field, column in zip(fields, zip(*rows, strict=True), strict=True):
            try:
                values = list(map(_as_text, column)) if component in self._as_strings else column
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise MessageError(
                    f"the output of {component!r}: column {field.name!r} is {field.type} and cannot hold "
                    f"an emitted value ({error}); change the schema or the value"
                ) from error
        return pa.StructArray.from_arrays(arrays, fields=fields)


def _as_text(value: Any) -> str | None:
    if isinstance(value, bytes):
        raise TypeError("bytes are not text: decode them, or give the bolt a schema")
    return value if value is None or isinstance(value, str) else str(value)
