"""Conversion of Arrow columns to message batches and back, and rows that are packed into payloads."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tuplewire.errors import InvalidTaskError, MalformedError, MessageError
from tuplewire.values.arrow_rows import pack_rows, route_rows, unpack_rows
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.message import TaskMessage

TASKS = [3, 1, 3, 0]
PAYLOADS = [b"a", b"", b"ccc", b"dd"]
SORTED = [TaskMessage(0, b"dd"), TaskMessage(1, b""), TaskMessage(3, b"a"), TaskMessage(3, b"ccc")]


BINARY = pa.array(PAYLOADS, pa.binary())
TEXT = pa.array([payload.decode() for payload in PAYLOADS])


@pytest.mark.parametrize(
    ("tasks", "payloads"),
    [
        *((pa.array(TASKS, kind), BINARY) for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint64())),
        (pa.array(TASKS).dictionary_encode(), BINARY),
        *((pa.array(TASKS), pa.array(PAYLOADS, kind)) for kind in (pa.large_binary(), pa.binary_view())),
        *((pa.array(TASKS), TEXT.cast(kind)) for kind in (pa.string(), pa.large_string())),
        (pa.array(TASKS), BINARY.dictionary_encode().cast(pa.dictionary(pa.int8(), pa.binary()))),
        (pa.array(TASKS), TEXT.cast(pa.large_string()).dictionary_encode()),
        (
            pa.chunked_array([TASKS[:1], [], TASKS[1:]], pa.int64()),
            pa.chunked_array([PAYLOADS[:3], PAYLOADS[3:], []], pa.binary()),
        ),
    ],
    ids=lambda column: str(column.type),
)
def test_types_and_layouts(tasks: Any, payloads: Any) -> None:
    """Tasks are integers of any width; payloads are binary, or text as UTF-8. Chunks may differ."""
    assert list(TaskMessageBatch.from_arrow(tasks, payloads)) == SORTED


@pytest.mark.parametrize("task", [7, np.int64(7)])
def test_one_task(task: Any) -> None:
    """A single task id applies to all rows and preserves their order."""
    batch = TaskMessageBatch.from_arrow(task, BINARY, source=np.int32(2))
    assert batch == TaskMessageBatch.from_columns(7, PAYLOADS, sources=2)


@pytest.mark.parametrize(
    ("tasks", "payloads", "says"),
    [
        (pa.array([1, None]), pa.array([b"a", b"b"]), "1 null"),
        (pa.array([1, 2]), pa.array([b"a", None]), r"1 null\(s\); filter or fill"),
        (pa.array([1, 2]), pa.nulls(2), r"2 null\(s\)"),
        (pa.array([1.0, 2.0]), pa.array([b"a", b"b"]), "integers .* not double"),
        (pa.array([1, 2]), pa.array([1, 2]), "binary or string, not int64"),
        (pa.array([1, 2]), pa.array([["a"], []]), "binary or string, not list"),
        (pa.array([1]), pa.array([b"a", b"b"]), "differ in length"),
        (pa.array([1, 2]), [b"a", b"b"], "is a list, not an Arrow array.*from_columns"),
    ],
)
def test_malformed(tasks: Any, payloads: Any, says: str) -> None:
    """Nulls, other types and columns of different lengths are rejected with the reason."""
    with pytest.raises(MalformedError, match=says):
        TaskMessageBatch.from_arrow(tasks, payloads)


@pytest.mark.parametrize(
    "tasks",
    [
        -1,
        2**31,
        2**70,
        pa.array([0, -1]),
        pa.array([2**31, 1]),
        pa.array([2**64 - 1, 1], pa.uint64()),
        [1, 2],
    ],
)
def test_bad_tasks(tasks: Any) -> None:
    """Ids outside 0 to 2^31-1, and other arguments, are rejected; a source even if the batch is empty."""
    with pytest.raises(InvalidTaskError):
        TaskMessageBatch.from_arrow(tasks, pa.array([b"a", b"b"]))
    with pytest.raises(InvalidTaskError):
        TaskMessageBatch.from_arrow(1, pa.array([], pa.binary()), source=-1)


def test_too_large() -> None:
    """A column over 2 GiB is rejected instead of truncated: its offsets would not fit."""
    with mmap.mmap(-1, 2**31) as untouched:  # never written, so it uses no memory
        column = pa.Array.from_buffers(
            pa.large_binary(), 1, [None, pa.py_buffer(struct.pack("<2q", 0, 2**31)), pa.py_buffer(untouched)]
        )
        with pytest.raises(MalformedError, match="smaller batches"):
            TaskMessageBatch.from_arrow(1, column)
        half = pa.Array.from_buffers(
            pa.binary(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 2**31 - 1)), pa.py_buffer(untouched)]
        )
        with pytest.raises(MalformedError, match="smaller batches"):
            TaskMessageBatch.from_arrow(1, pa.chunked_array([half, half]))
        del column, half


def headers_of(rows: list[Any]) -> pa.Array:
    """Return a headers column with the schema that Spark uses."""
    return pa.array(rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


PLAIN = pa.array([b"a", b"b", b"c", b"d"])
TWO_TASKS = pa.array([2, 1, 2, 1])


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([b"k", None, b"", b"x" * 125]),
        pa.array([b"k", None, b"", b"x" * 126]),
        pa.array([b"k", None, b"", b"x" * 20_000]),
        pa.array(["k", None, "", "é"]),
        pa.array(["k", None, "", "é"], pa.large_string()),
        pa.array(["k", None, "", "k"]).dictionary_encode(),
        pa.chunked_array([["k", None], ["", "é"]]),
        pa.array([b"no", b"k", None, b"", b"y", b"no"]).slice(1, 4),
    ],
    ids=["short", "long", "longer", "string", "large", "dictionary", "chunked", "sliced"],
)
def test_keys_alone(keys: Any) -> None:
    """Keys of any layout are preserved; an empty key differs from a missing key."""
    batch = TaskMessageBatch.from_arrow(TWO_TASKS, PLAIN, keys=keys)
    given = [key.encode() if isinstance(key, str) else key for key in keys.to_pylist()]
    assert batch == TaskMessageBatch.from_columns(
        [1, 1, 2, 2], [b"b", b"d", b"a", b"c"], keys=[given[1], given[3], given[0], given[2]]
    )
    table = batch.to_arrow(headers=True)
    assert table.column("key").to_pylist() == [given[1], given[3], given[0], given[2]]
    assert table.column("headers").null_count == 4


def test_keys_and_headers() -> None:
    """Keys and headers are sent together, in any layout that Spark produces."""
    rows = [[("a", b"1"), ("", b""), ("a", b"")], None, [], [("traceparent", b"x" * 300)]]
    columns = headers_of([[("no", b"")], *rows]).slice(1)
    batch = TaskMessageBatch.from_arrow(1, PLAIN, keys=pa.array([b"k", b"", None, None]), headers=columns)
    assert batch == TaskMessageBatch.from_columns(
        1, PLAIN.to_pylist(), keys=[b"k", b"", None, None], headers=rows
    )
    assert batch.headers == [tuple(row or ()) for row in rows]
    assert batch.to_arrow(headers=True).column("headers").to_pylist() == [
        [{"key": name, "value": value} for name, value in row] if row else None for row in rows
    ]


def test_headers_as_a_map() -> None:
    """A map column of names and values is also accepted as headers."""
    column = pa.array([[("a", b"1")], None, [], [("b", b"2")]], pa.map_(pa.string(), pa.binary()))
    batch = TaskMessageBatch.from_arrow(1, PLAIN, headers=column)
    assert batch.headers == [(("a", b"1"),), (), (), (("b", b"2"),)]


def test_columns_without_any_cost_nothing() -> None:
    """If no message of a task has a key or headers, its group has no such columns."""
    nothing = TaskMessageBatch.from_arrow(
        TWO_TASKS, PLAIN, keys=pa.nulls(4, pa.binary()), headers=headers_of([None] * 4)
    )
    assert all(group.payload_only for group in nothing.groups)
    some = TaskMessageBatch.from_arrow(TWO_TASKS, PLAIN, keys=pa.array([None, b"k", None, None]))
    assert [group.payload_only for group in some.groups] == [False, True]
    assert "key" not in some.to_arrow().schema.names


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"keys": pa.array([1, 2, 3, 4])}, "the key column must be binary or string, not int64"),
        ({"keys": pa.array([b"k"])}, "the column 'key' has 1 rows for 4 payloads"),
        ({"headers": pa.array([b"k"] * 4)}, "the headers column must be lists of structs of a name"),
        ({"headers": pa.array([[1]] * 4)}, "the headers column must be lists of structs of a name"),
        ({"headers": headers_of([[(None, b"")]] * 4)}, r"4 header\(s\) without a name; filter or fill"),
        ({"headers": headers_of([[None]] * 4)}, r"4 header\(s\) without a name; filter or fill them first"),
        (
            {
                "headers": pa.array(
                    [[("a", 1)]] * 4, pa.list_(pa.struct([("k", pa.string()), ("v", pa.int8())]))
                )
            },
            "the headers column must be lists with binary or string values, not int8",
        ),
        ({"keys": ["k"] * 4}, "the key column is a list, not an Arrow array"),
    ],
)
def test_wrong_keys_and_headers(columns: dict[str, Any], why: str) -> None:
    """The error names the column and the problem."""
    with pytest.raises(MalformedError, match=why):
        TaskMessageBatch.from_arrow(1, PLAIN, **columns)


ROWS = pa.RecordBatch.from_pylist(
    [
        {"carrier": f"C{number % 3}", "delay": None if number % 5 == 0 else number / 2}
        for number in range(1000)
    ]
)


def test_rows_in_a_message() -> None:
    """Rows of any columns survive packing; a packed slice contains only its own rows."""
    assert unpack_rows(pack_rows(ROWS)).equals(ROWS)
    part = ROWS.slice(990, 7)
    assert unpack_rows(pack_rows(part)).to_pylist() == part.to_pylist()
    assert len(pack_rows(part)) < 1000
    assert unpack_rows(pack_rows(ROWS.slice(0, 0))).num_rows == 0


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"text", pack_rows(ROWS)[:-200], pack_rows(ROWS)[:300], pack_rows(ROWS)[8:]]
)
def test_a_payload_without_rows(payload: bytes) -> None:
    """A payload that does not contain complete packed rows raises a MalformedError."""
    with pytest.raises(MalformedError, match="holds no rows"):
        unpack_rows(payload)


def test_text_in_rows_is_checked() -> None:
    """A payload with invalid UTF-8 text is rejected when it is unpacked."""
    rows = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())], names=["text"]
    )
    with pytest.raises(MalformedError, match="UTF8"):
        unpack_rows(pack_rows(rows))


def test_rows_are_routed() -> None:
    """Rows reach their tasks completely and in order, in messages of about `max_bytes`."""
    tasks = pa.array([number % 3 for number in range(1000)], pa.int32())
    found, payloads = route_rows(tasks, ROWS)
    assert found == [0, 1, 2]
    for task, payload in zip(found, payloads, strict=True):
        assert unpack_rows(payload).to_pylist() == ROWS.to_pylist()[task::3]
    found, payloads = route_rows(tasks, ROWS, max_bytes=1000)
    assert len(found) > 10
    assert found == sorted(found)
    again = [row for payload in payloads for row in unpack_rows(payload).to_pylist()]
    assert again == [row for task in range(3) for row in ROWS.to_pylist()[task::3]]
    assert len(route_rows(tasks, ROWS, max_bytes=1)[0]) == 1000
    assert route_rows(tasks.slice(0, 0), ROWS.slice(0, 0)) == ([], [])


def _stream(*batches: pa.RecordBatch) -> bytes:
    """Return an Arrow stream as another program could write it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def test_every_batch_of_a_stream_is_read() -> None:
    """All batches of a stream are read, even if their dictionaries differ."""
    assert unpack_rows(_stream(ROWS.slice(0, 3), ROWS.slice(3, 3), ROWS.slice(6, 3))).to_pylist() == (
        ROWS.slice(0, 9).to_pylist()
    )
    coded = [pa.record_batch({"text": pa.array(texts).dictionary_encode()}) for texts in (["a", "b"], ["c"])]
    assert unpack_rows(_stream(*coded)).to_pylist() == [{"text": "a"}, {"text": "b"}, {"text": "c"}]


def test_tables_are_rows_too() -> None:
    """A table is packed and routed like a record batch, with any number of chunks."""
    table = pa.table({"a": pa.chunked_array([[1, 2], [3]])})
    assert unpack_rows(pack_rows(table)).to_pylist() == table.to_pylist()
    assert unpack_rows(pack_rows(table.slice(0, 0))).num_rows == 0
    found, payloads = route_rows(pa.chunked_array([[5], [5, 6]]), table)
    assert found == [5, 6]
    assert [unpack_rows(each).num_rows for each in payloads] == [2, 1]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("index", [pa.int8(), pa.int32(), pa.uint64()])
def test_dictionaries_stay_in_proportion(index: pa.DataType, ordered: bool) -> None:  # noqa: FBT001
    """A message contains only the dictionary values of its own rows and keeps the column type."""
    values = pa.array([f"{number:05}" * 200 for number in range(120)])
    indices = pa.array([None if number % 7 == 0 else number % 120 for number in range(1200)], index)
    rows = pa.record_batch({"text": pa.DictionaryArray.from_arrays(indices, values, ordered=ordered)})
    part = rows.slice(600, 2)
    packed = pack_rows(part)
    assert len(packed) < 5000
    assert unpack_rows(packed).schema == rows.schema
    assert unpack_rows(packed).to_pylist() == part.to_pylist()
    found, payloads = route_rows(pa.array([number % 120 for number in range(1200)]), rows)
    assert found == list(range(120))
    assert sum(map(len, payloads)) < 3 * rows.nbytes


@pytest.mark.parametrize(
    ("tasks", "error"),
    [
        (pa.array([1]), MessageError),
        (pa.array([1, None]), InvalidTaskError),
        (pa.array([1, -1]), InvalidTaskError),
        (pa.array([0, 2**64 - 1], pa.uint64()), InvalidTaskError),
        (pa.array([0.0, 1.0]), InvalidTaskError),
        ([1, object()], InvalidTaskError),
        (7, InvalidTaskError),
    ],
)
def test_tasks_that_do_not_fit_the_rows(tasks: Any, error: type[Exception]) -> None:
    """Tasks that do not fit the rows raise a Tuplewire error, not an Arrow error, and no row is dropped."""
    with pytest.raises(error):
        route_rows(tasks, ROWS.slice(0, 2))


@pytest.mark.parametrize("rows", [None, [1], {"a": [1]}, b"x"])
def test_what_are_no_rows(rows: Any) -> None:
    """The error names the type of the argument."""
    with pytest.raises(MessageError, match=type(rows).__name__):
        pack_rows(rows)
    with pytest.raises(MessageError):
        unpack_rows(rows)
