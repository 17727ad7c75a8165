"""Rows that cannot be sent are detected and named, regardless of the problem."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tuplewire.connection.control_client import ControlClient
from tuplewire.spark.options import sink_options
from tuplewire.spark.row_router import BadRowFilter, BadRowsError
from tuplewire.spark.staging import SinkWorkers
from tuplewire.wire import control_pb2 as pb


def rows(policy: str | int = "fail", known: tuple[int, ...] = (1, 2)) -> BadRowFilter:
    """Return the filter for rows of partition 7, with at most four bytes each."""
    return BadRowFilter(policy, 7, 4, set(known).intersection)


def batch(messages: pa.Array) -> pa.RecordBatch:
    """Return rows as Spark passes them."""
    return pa.RecordBatch.from_pydict({"message": messages, "key": pa.array(range(len(messages)))})


GOOD = pa.array([1, 2, 1], pa.int32()), batch(pa.array([b"a", b"bb", b"ccc"]))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("text", [pa.binary(), pa.string()])
def test_good_rows_stay_as_they_are(kind: pa.DataType, text: pa.DataType) -> None:
    """Valid rows of any type are not copied."""
    tasks, good = GOOD[0].cast(kind), batch(GOOD[1].column("message").cast(text))
    kept = rows().filter(tasks, good)
    assert kept[0] is tasks
    assert kept[1] is good
    assert kept[2] == []


@pytest.mark.parametrize(
    ("task", "message", "why"),
    [
        (1, None, "the message is null (task 1, message None)"),
        (
            1,
            b"12345",
            "the message has more than 4 bytes, with its key and headers: the worker's max_message_bytes (t",
        ),
        (None, b"a", "the task is null (task None, message 'a')"),
        (-1, b"\xff", "the task is not from 0 to 2147483647 (task -1, message '\\\\\\\\xff')"),
        (2**31, b"a", "the task is not from 0 to 2147483647"),
        (3, b"a", "the task is not in the assignment (task 3"),
    ],
)
def test_the_first_bad_row_is_named(task: Any, message: Any, why: str) -> None:
    """The error contains the number in the partition, the problem and the value."""
    bad = rows()
    bad.filter(*GOOD)
    with pytest.raises(BadRowsError) as error:
        bad.filter(pa.array([2, task, task], pa.int64()), batch(pa.array([b"x", message, message])))
    assert f"row 4 of partition 7: {why}".replace("\\\\\\\\", "\\\\") in str(error.value)
    assert "2 of the 3 rows from 3 on cannot be sent" in str(error.value)


def test_dropped_rows_are_counted() -> None:
    """Bad rows are counted, and the other rows continue in order."""
    bad = rows("drop")
    tasks, kept, told = bad.filter(pa.array([1, None, 2, 9]), batch(pa.array(["a", "b", "c", "d"])))
    assert (tasks.to_pylist(), told, bad.count) == ([1, 2], [], 2)
    assert kept.to_pydict() == {"message": ["a", "c"], "key": [0, 2]}


def test_rows_for_a_task_of_their_own_are_told_of() -> None:
    """If `badRows` is a task, it receives each bad row with the reason and its position."""
    bad = rows(2)
    bad.filter(*GOOD)
    tasks, kept, told = bad.filter(pa.array([1, None, 9]), batch(pa.array(["a", "b", "d"])))
    assert (tasks.to_pylist(), kept.to_pydict()) == ([1], {"message": ["a"], "key": [0]})
    first, second = map(json.loads, told)
    assert (first["task"], first["message"], first["partition"], first["row"]) == (None, "b", 7, 4)
    assert (second["task"], second["message"], second["row"]) == (9, "d", 5)
    assert first["why"] != second["why"]


def test_a_task_that_is_assigned_later_is_found() -> None:
    """The assignment is requested again for unknown tasks."""
    known = {1}
    bad = BadRowFilter("fail", 0, 4, lambda tasks: tasks & known)
    with pytest.raises(BadRowsError):
        bad.filter(*GOOD)
    known.add(2)
    assert bad.filter(*GOOD)[2] == []


def test_new_tasks_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The assignment is not requested again if all tasks are known."""
    asked: list[pb.Assignment] = []

    def assignment(_: ControlClient) -> pb.Assignment:
        worker = pb.AssignedWorker(worker_id="w", address="w:1", tasks=[1, 2])
        asked.append(pb.Assignment(topology="t", workers=[worker]))
        return asked[-1]

    monkeypatch.setattr(ControlClient, "get_assignment", assignment)
    sorting = BadRowFilter(
        "fail", 7, 4, SinkWorkers(sink_options({"address": "w:1", "topology": "t"})).find_assigned
    )
    for _ in range(2):
        sorting.filter(*GOOD)
    assert len(asked) == 1
