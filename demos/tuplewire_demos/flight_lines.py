"""Lines of CSV to columns of flights, in a spout: whole batches by Arrow, lines with quotes one by one."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

COLUMNS = ("carrier", "dep_delay", "origin", "dest")
"""What the input must have; dep_delay is in minutes, and empty or NA for a flight that never left."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
"""What a dep_delay looks like."""
MAX_DOUBLE = 1.7976931348623157e308
_QUOTE = re.compile(b'"')


class FlightReader:
    """Reads lines after the header. header: the names in it."""

    def __init__(self, header: Sequence[str]) -> None:
        self._n_columns = len(header)
        self._places = [header.index(name) for name in COLUMNS]
        self._names = [f"c{place}" for place in range(len(header))]
        self._not_columns = f"has not the header's {len(header)} columns"

    def read(self, lines: pa.RecordBatch) -> pa.RecordBatch:
        """Return the flights of lines (`id`, and `value` as bytes), as COLUMNS, `id`, `problem` and `line`.

        A line that is no flight has a `problem`, in words. Empty lines, and that with id 0, are left out.
        """
        if (header := pc.index(lines.column("id"), 0).as_py()) >= 0:
            lines = pa.concat_batches([lines.slice(0, header), lines.slice(header + 1)])
        text, bad = _decoded(lines.column("value"))
        if (fields := self._split(text)) is not None:
            return _checked(lines, fields, bad)
        filled = pc.not_equal(pc.utf8_trim(text, " "), "")
        lines, text, bad = lines.filter(filled), text.filter(filled), bad.filter(filled)
        plain = pc.and_(
            pc.invert(pc.match_substring(text, '"')),
            pc.equal(pc.count_substring(text, ","), self._n_columns - 1),
        )
        odd = pc.invert(plain)
        whole = self._split(text.filter(plain))
        assert whole is not None  # noqa: S101 - such lines have neither quotes nor another number of columns
        found, wrong = self._split_singly(text.filter(odd))
        order = pa.concat_arrays([pc.indices_nonzero(plain), pc.indices_nonzero(odd)])
        back = pc.array_sort_indices(order)
        fields = [pa.concat_arrays(pair).take(back) for pair in zip(whole, found, strict=True)]
        none_wrong = pa.nulls(len(whole[0]), pa.string())
        problem = pc.coalesce(bad, pa.concat_arrays([none_wrong, wrong]).take(back))
        return _checked(lines, fields, problem)

    def _split(self, text: pa.Array) -> list[pa.Array] | None:
        """Return the fields of lines; None where one is empty, or has quotes or another number of columns."""
        if not len(text):
            return [pa.array([], pa.string())] * len(COLUMNS)
        ended = pc.binary_join_element_wise(text, "", "\n")
        _, offsets, data = ended.buffers()
        ends = memoryview(offsets).cast("i")
        lines = data[ends[ended.offset] : ends[ended.offset + len(ended)]]
        if _QUOTE.search(lines):
            return None
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(lines),
                arrow_csv.ReadOptions(column_names=self._names, use_threads=False),
                arrow_csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(self._names, pa.string()),
                    include_columns=[self._names[place] for place in self._places],
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        return [table.column(place).combine_chunks() for place in range(len(COLUMNS))]

    def _split_singly(self, text: pa.Array) -> tuple[list[pa.Array], pa.Array]:
        """Return the fields of any lines, and the problem of each, or null."""
        rows, problems = [], []
        for line in text.to_pylist():
            problem = None
            try:
                (row,) = csv.reader([line], strict=True)
            except csv.Error:
                row = []
            if len(row) != self._n_columns or line.count('"') % 2:
                row, problem = [""] * self._n_columns, self._not_columns
            rows.append(row)
            problems.append(problem)
        fields = [pa.array([row[place] for row in rows], pa.string()) for place in self._places]
        return fields, pa.array(problems, pa.string())


def _decoded(lines: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return lines as text, and the problem of each that is none, or null."""
    try:
        return lines.cast(pa.string()), pa.nulls(len(lines), pa.string())
    except pa.ArrowInvalid:
        text: list[str] = []
        problems: list[str | None] = []
        for line in lines.to_pylist():
            try:
                text.append(line.decode())
                problems.append(None)
            except UnicodeDecodeError:
                text.append("?")
                problems.append("is not UTF-8")
        return pa.array(text, pa.string()), pa.array(problems, pa.string())


def _checked(lines: pa.RecordBatch, fields: Sequence[pa.Array], problem: pa.Array) -> pa.RecordBatch:
    carrier, delay, origin, dest = fields
    nothing = pa.scalar(None, pa.string())
    for name, values in (("carrier", carrier), ("origin", origin), ("dest", dest)):
        if pc.any(empty := pc.equal(values, "")).as_py():
            problem = pc.coalesce(problem, pc.if_else(empty, f"has no {name}", nothing))
    absent = pc.is_in(delay, pa.array(["", "NA"]))
    minutes, is_number = _numbers(pc.if_else(absent, nothing, delay))
    problem = pc.coalesce(
        problem, pc.if_else(pc.or_(absent, is_number), nothing, "has a dep_delay that is no number")
    )
    columns = [carrier, minutes, origin, dest, lines.column("id"), problem, lines.column("value")]
    return pa.RecordBatch.from_arrays(columns, names=[*COLUMNS, "id", "problem", "line"])


def _numbers(text: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return numbers, null where there is no text or no finite number, and whether each is one."""
    try:
        numbers = text.cast(pa.float64())
    except pa.ArrowInvalid:
        found = [float(each) if each and re.match(NUMBER, each) else None for each in text.to_pylist()]
        numbers = pa.array(found, pa.float64())
    finite = pc.fill_null(pc.is_finite(numbers), fill_value=False)
    return pc.if_else(finite, numbers, pa.scalar(None, pa.float64())), finite
