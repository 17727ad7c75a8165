"""The rows of a PySpark task of a topology: what its bolts put out, then its report or its failure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuplewire.errors import MessageError
from tuplewire.spark.topology.output import FAILURE, REPORT, Output, failure_text
from tuplewire.topology.collector import Emitted
from tuplewire.topology.running.statistics import ExecutorStatistics, from_statistics
from tuplewire.topology.running.termination import Failure

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 10_000
_TIME_ZONE = "UTC"


class Writer:
    """Makes record batches of Output.stage_schema()."""

    def __init__(self, output: Output) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._texts = output.texts
        self._schema = to_arrow_schema(output.stage_schema(), timezone=_TIME_ZONE)
        self._names = [*output.schemas, REPORT, FAILURE]
        self._fields = {
            name: to_arrow_schema(schema, timezone=_TIME_ZONE) for name, schema in output.schemas.items()
        }

    def batches(self, runs: Sequence[Emitted]) -> Iterator[pa.RecordBatch]:
        """Return tuples as record batches; MessageError for a value that its column cannot hold."""
        rows: dict[str, list[Sequence[Any]]] = {}
        for run in runs:
            rows.setdefault(run.source.component, []).extend(message.values for message in run.tuples)
        for component, column in rows.items():
            for begin in range(0, len(column), _ROWS):
                values = self._struct(component, column[begin : begin + _ROWS])
                yield self._batch({component: values}, len(values))

    def report(self, statistics: Sequence[ExecutorStatistics]) -> pa.RecordBatch:
        """Return what the executors of a PySpark task have done, as its last row."""
        return self._batch({REPORT: json.dumps(list(map(from_statistics, statistics)))}, 1)

    def failure(self, rank: int, error: BaseException) -> pa.RecordBatch:
        """Return an error as the row that fails the job."""
        return self._batch({FAILURE: failure_text(f"PySpark task {rank}", Failure.of(error))}, 1)

    def _batch(self, columns: Mapping[str, Any], n_rows: int) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = []
        for name, field in zip(self._names, self._schema, strict=True):
            value = columns.get(name)
            if isinstance(value, str):
                value = pa.array([value], field.type)
            arrays.append(pa.nulls(n_rows, field.type) if value is None else value)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _struct(self, component: str, rows: Sequence[Sequence[Any]]) -> pa.StructArray:
        import pyarrow as pa

        schema = self._fields[component]
        arrays = []
        for field, column in zip(schema, zip(*rows, strict=True), strict=True):
            try:
                values = list(map(_as_text, column)) if component in self._texts else column
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise MessageError(
                    f"the output of {component!r}: column {field.name!r} is {field.type} and cannot hold "
                    f"what the bolt has emitted ({error}); give a schema that fits, or emit what does"
                ) from error
        return pa.StructArray.from_arrays(arrays, fields=list(schema))


def _as_text(value: Any) -> str | None:
    if isinstance(value, bytes):
        raise TypeError("bytes have no form as text")
    return value if value is None or isinstance(value, str) else str(value)
