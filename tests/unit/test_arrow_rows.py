"""Rows in a message, and divided by task."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tuplewire.arrow_rows import pack_rows, route_rows, unpack_rows
from tuplewire.errors import MalformedError

ROWS = pa.RecordBatch.from_pylist(
    [
        {"carrier": f"C{number % 3}", "delay": None if number % 5 == 0 else number / 2}
        for number in range(1000)
    ]
)


def test_rows_in_a_message() -> None:
    """Rows of any columns come out of a payload as they went in, and slices without the rest."""
    assert unpack_rows(pack_rows(ROWS)).equals(ROWS)
    part = ROWS.slice(990, 7)
    assert unpack_rows(pack_rows(part)).to_pylist() == part.to_pylist()
    assert len(pack_rows(part)) < 1000
    assert unpack_rows(pack_rows(ROWS.slice(0, 0))).num_rows == 0


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"text", pack_rows(ROWS)[:-200], pack_rows(ROWS)[:300], pack_rows(ROWS)[8:]]
)
def test_a_payload_without_rows(payload: bytes) -> None:
    """What is no packed rows, or half of them, is an error of ours."""
    with pytest.raises(MalformedError, match="holds no rows"):
        unpack_rows(payload)


def test_text_in_rows_is_checked() -> None:
    """A payload whose text is no UTF-8 is refused, and not handed on."""
    rows = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())], names=["text"]
    )
    with pytest.raises(MalformedError, match="UTF8"):
        unpack_rows(pack_rows(rows))


def test_rows_are_routed() -> None:
    """Rows go to their tasks, in order, in messages of about the bytes that are allowed, and none is lost."""
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
