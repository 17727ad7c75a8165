"""Rows packed into payloads, and rows routed to tasks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tuplewire.errors import InvalidTaskError, MalformedError, MessageError
from tuplewire.values.arrow_rows import pack_rows, route_rows, unpack_rows

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
    column = pa.DictionaryArray.from_arrays(indices, values, ordered=ordered)
    rows = pa.record_batch({"text": column})
    part = rows.slice(600, 2)
    packed = pack_rows(part)
    assert len(packed) < 5000
    assert unpack_rows(packed).schema == rows.schema
    assert unpack_rows(packed).to_pylist() == part.to_pylist()
    tasks = pa.array([number % 120 for number in range(1200)])
    found, payloads = route_rows(tasks, rows)
    assert found == list(range(120))
    assert sum(map(len, payloads)) < 3 * rows.nbytes


@pytest.mark.parametrize(
    ("tasks", "error"),
    [
        (pa.array([1]), MessageError),
        (pa.array([1, 2, 3]), MessageError),
        (pa.array([1, None]), InvalidTaskError),
        (pa.array([1, -1]), InvalidTaskError),
        (pa.array([1, 2**31]), InvalidTaskError),
        (pa.array([0, 2**64 - 1], pa.uint64()), InvalidTaskError),
        (pa.array([0.0, 1.0]), InvalidTaskError),
        (pa.array(["0", "1"]), InvalidTaskError),
        (pa.array([None, None]), InvalidTaskError),
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


def test_tasks_may_be_a_list_or_coded() -> None:
    """Tasks may be any sequence with one integer for each row."""
    for tasks in ([3, 4], pa.array([3, 4]).dictionary_encode(), pa.array([3, 4], pa.uint8())):
        assert route_rows(tasks, ROWS.slice(0, 2))[0] == [3, 4]
