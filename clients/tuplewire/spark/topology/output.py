"""What comes out of a topology on Spark: rows of bolts, reports, and a failure, in one DataFrame.

A stage has one result, so each bolt's rows are a column of structs there, null where the row is another's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tuplewire.errors import MessageError, TopologyError
from tuplewire.topology.collector import Emitted
from tuplewire.topology.description import Kind, Topology
from tuplewire.topology.executor import ExecutorStatistics
from tuplewire.topology.reporting import from_statistics, to_statistics
from tuplewire.topology.streams import DEFAULT_STREAM
from tuplewire.topology.termination import Failure, ProcessFailedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

REPORT = "report"
FAILURE = "failure"
_ROWS = 10_000
_BEGIN = "A topology has failed. "
_SEPARATOR = "\n-- its traceback:\n"
_END = "\n-- end of the traceback"


@dataclass(frozen=True)
class Output:
    """The bolts whose default stream comes back, and the schema of each.

    texts: the bolts without a schema of the user's: their fields come back as strings.
    """

    schemas: Mapping[str, StructType]
    texts: frozenset[str]

    @classmethod
    def of(cls, topology: Topology, outputs: Mapping[str, str | StructType | None] | None) -> Self:
        """Check what the user asks for; by default the fields of each bolt that nobody subscribes to.

        Raises TopologyError for an unknown component, or a schema with another number of columns.
        """
        from pyspark.sql.types import StringType, StructField, StructType

        if outputs is None:
            outputs = dict.fromkeys(_terminal_bolts(topology))
        schemas: dict[str, StructType] = {}
        for name, wanted in outputs.items():
            fields = topology.component(name).stream(DEFAULT_STREAM).fields
            if wanted is None:
                schema = StructType([StructField(field, StringType()) for field in fields])
            else:
                schema = _parsed(wanted) if isinstance(wanted, str) else wanted
            if len(schema.fields) != len(fields):
                raise TopologyError(
                    f"the schema for {name!r} has the columns {', '.join(schema.names)}, and its tuples have "
                    f"the fields {', '.join(fields)}: name a column for each field, in their order"
                )
            schemas[name] = StructType([StructField(each.name, each.dataType) for each in schema.fields])
        return cls(schemas, frozenset(name for name, wanted in outputs.items() if wanted is None))

    def stage_schema(self) -> StructType:
        """Return the schema of the stage's result."""
        from pyspark.sql.types import StringType, StructField, StructType

        columns = [StructField(_column(place), schema) for place, schema in enumerate(self.schemas.values())]
        return StructType([*columns, StructField(REPORT, StringType()), StructField(FAILURE, StringType())])

    def checked(self, stage: DataFrame) -> DataFrame:
        """Return the stage's result behind a shuffle, as a job that fails where there is a failure in it.

        The shuffle has Spark run the whole stage again when a process of it is lost; a failure of the user's
        code is told only behind it, since that would happen again.
        """
        from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

        fails = F.when(F.col(FAILURE).isNotNull(), F.raise_error(F.col(FAILURE)).isNull())
        # What depends on the partition cannot be moved before the shuffle.
        return stage.where(fails.otherwise(F.spark_partition_id() >= 0))

    def frames(self, result: DataFrame) -> dict[str, DataFrame]:
        """Return each bolt's rows."""
        from pyspark.sql import functions as F  # noqa: N812

        return {
            name: result.where(F.col(_column(place)).isNotNull()).select(f"{_column(place)}.*")
            for place, name in enumerate(self.schemas)
        }

    # --- in a PySpark task --------------------------------------------------------------------------------

    def wants(self, run: Emitted) -> bool:
        """Whether tuples are among what comes back."""
        return run.origin.stream.name == DEFAULT_STREAM and run.origin.component in self.schemas

    def batches(self, runs: Sequence[Emitted]) -> Iterator[pa.RecordBatch]:
        """Return tuples as record batches; MessageError for a value that its column cannot hold."""
        rows: dict[str, list[Sequence[Any]]] = {}
        for run in runs:
            rows.setdefault(run.origin.component, []).extend(message.values for message in run.tuples)
        for component, column in rows.items():
            for begin in range(0, len(column), _ROWS):
                values = self._struct(component, column[begin : begin + _ROWS])
                yield self._batch({component: values}, len(values))

    def report(self, statistics: Sequence[ExecutorStatistics]) -> pa.RecordBatch:
        """Return what the executors of a PySpark task have done, as its last row."""
        return self._batch({REPORT: json.dumps(list(map(from_statistics, statistics)))}, 1)

    def failure(self, rank: int, error: BaseException) -> pa.RecordBatch:
        """Return an error as the row that fails the job."""
        failure = Failure.of(error)
        text = f"{_BEGIN}PySpark task {rank}: {failure.summary}{_SEPARATOR}{failure.traceback.rstrip()}{_END}"
        return self._batch({FAILURE: text}, 1)

    def _batch(self, columns: Mapping[str, Any], n_rows: int) -> pa.RecordBatch:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.stage_schema())
        names = [*self.schemas, REPORT, FAILURE]
        arrays = []
        for name, field in zip(names, schema, strict=True):
            value = columns.get(name)
            if isinstance(value, str):
                value = pa.array([value], field.type)
            arrays.append(pa.nulls(n_rows, field.type) if value is None else value)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _struct(self, component: str, rows: Sequence[Sequence[Any]]) -> pa.StructArray:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schemas[component])
        arrays = []
        for field, column in zip(schema, zip(*rows, strict=True), strict=True):
            values = list(map(_as_text, column)) if component in self.texts else column
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise MessageError(
                    f"the output of {component!r}: column {field.name!r} is {field.type} and cannot hold "
                    f"what the bolt has emitted ({error}); give a schema that fits, or emit what does"
                ) from error
        return pa.StructArray.from_arrays(arrays, fields=list(schema))


def _parsed(text: str) -> StructType:
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(text)
    if not isinstance(parsed, StructType):
        raise TopologyError(f"the schema {text!r} is no list of columns: write `name type, name type`")
    return parsed


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _not_bytes(value)


def _not_bytes(value: Any) -> str:
    if isinstance(value, bytes):
        raise TypeError("bytes have no form as text: give a schema with a binary column")
    return str(value)


def _column(place: int) -> str:
    return f"output_{place}"


def _terminal_bolts(topology: Topology) -> list[str]:
    return [
        component.id
        for component in topology.components.values()
        if component.kind is Kind.BOLT
        and any(stream.name == DEFAULT_STREAM for stream in component.streams)
        and not topology.targets_of(component.id)
    ]


def failure_in(text: str, topology: str) -> ProcessFailedError | None:
    """Return the failure that failure() has put into the text of a Spark error; None where there is none."""
    _, begun, rest = text.partition(_BEGIN)
    process, colon, rest = rest.partition(": ")
    summary, separated, rest = rest.partition(_SEPARATOR)
    traceback, ended, _ = rest.partition(_END)
    if not (begun and colon and separated and ended):
        return None
    return ProcessFailedError(f"{process} of topology {topology!r}", Failure(summary, traceback))


def statistics_in(result: DataFrame) -> list[ExecutorStatistics]:
    """Return what the executors of all PySpark tasks have done."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = result.where(F.col(REPORT).isNotNull()).select(REPORT).collect()
    return [to_statistics(values) for row in rows for values in json.loads(row[REPORT])]
