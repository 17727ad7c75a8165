"""The columns of the format `tuplewire`, and the routing of rows to tasks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, MapType, StringType, StructType

from tuplewire.errors import ConfigError
from tuplewire.grouping.grouping import fields
from tuplewire.session.consume import Delivery
from tuplewire.spark.columns import read_batch
from tuplewire.spark.data_source import check_read_schema, check_write_schema
from tuplewire.spark.options import GroupingName, sink_options
from tuplewire.spark.row_router import BadRowsError, RowRouter, split_batches
from tuplewire.spark.staging import SinkWorkers
from tuplewire.values.arrow import HEADERS
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup


def delivery(first: int, *payloads: bytes, accepted_micros: int = 0) -> Delivery:
    """Return messages of task 4, starting at a sequence."""
    return Delivery(first, TaskGroup.of(4, list(payloads)).with_default_time(accepted_micros))


class AllTasks(SinkWorkers):
    """A worker that owns every task and accepts messages of 1,000 bytes."""

    def find_assigned(self, tasks: Collection[int]) -> set[int]:
        self.max_message_bytes = 1000
        return set(tasks)


def router(grouping: str, partition: int = 0) -> RowRouter:
    """Return a router to tasks 5, 6 and 7, or to the task in the column `task`."""
    tasks = {} if grouping == "direct" else {"tasks": "5-7"}
    options = sink_options({"address": "w:1", "grouping": grouping, **tasks})
    return RowRouter(options, partition, AllTasks(options))


def groups_of(router: RowRouter, batch: pa.RecordBatch) -> list[TaskGroup]:
    """Return the groups for a batch of rows."""
    return [group for rows in router.check_rows([batch]) for group in router.to_groups(rows)]


def routed(router: RowRouter, batch: pa.RecordBatch) -> dict[int, list[bytes]]:
    """Return the payloads by task."""
    return {group.task: group.payloads() for group in groups_of(router, batch)}


def test_keys_and_headers_are_read() -> None:
    """Keys are always a column, headers on request; absent values are null."""
    batches = [
        TaskMessageBatch.from_columns(4, [b"a"]),
        TaskMessageBatch.from_columns(4, [b"b", b"c"], keys=[b"k", None], headers=[None, [("n", b"1")]]),
    ]
    groups = [group for batch in batches for group in batch.groups]
    assert read_batch(groups, 1).column("key").to_pylist() == [None, b"k", None]
    both = read_batch(groups, 1, headers=True)
    assert both.column("key").to_pylist() == [None, b"k", None]
    assert both.column("headers").to_pylist() == [None, None, [{"key": "n", "value": b"1"}]]


@pytest.mark.parametrize(
    ("keys", "travel"),
    [(pa.array(["k", None]), [b"k", None]), (pa.array([b"k", b""]), [b"k", b""]), (pa.array([1, 2]), None)],
    ids=["string", "binary", "integer"],
)
@pytest.mark.parametrize("grouping", ["fields", "shuffle"])
def test_keys_and_headers_are_written(
    grouping: str, keys: pa.Array, travel: list[bytes | None] | None
) -> None:
    """With `fields`, a key routes its row and is sent with it, except an integer key."""
    headers = pa.array([[("n", b"1")], None], HEADERS)
    batch = pa.RecordBatch.from_pydict({"message": ["a", "b"], "key": keys, "headers": headers})
    sent = TaskMessageBatch.from_groups(groups_of(router(grouping), batch))
    found = {message.message: (message.key, message.headers) for message in sent}
    first, second = travel or [None, None]
    assert found == {b"a": (first, (("n", b"1"),)), b"b": (second, ())}


def written(column: pa.Array, **more: pa.Array) -> TaskMessageBatch:
    """Return the batch for rows to task 5."""
    tasks = pa.array([5] * len(column), pa.int32())
    rows = pa.RecordBatch.from_pydict({"task": tasks, "message": column, **more})
    return TaskMessageBatch.from_groups(groups_of(router("direct"), rows))


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("headers", [True, False])
def test_a_null_with_a_key_comes_back_as_one(kind: pa.DataType, headers: bool) -> None:  # noqa: FBT001
    """A null with a key, Kafka's deletion marker, is preserved with all of its headers."""
    pairs = pa.array([[("n", None), ("m", b"")], None, [("n", b"1")]], HEADERS)
    sent = written(pa.array([None, None, "x"], kind), key=pa.array([b"a", b"", b"c"]), headers=pairs)
    assert [message.headers[-1:] for message in sent][:2] == [(("tuplewire-tombstone", b""),)] * 2
    read = read_batch(sent.groups, 1, headers=headers)
    assert read.column("message").to_pylist() == [None, None, b"x"]
    assert read.column("key").to_pylist() == [b"a", b"", b"c"]
    if headers:
        assert read.column("headers").to_pylist() == pairs.to_pylist()
    else:
        assert "headers" not in read.schema.names


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"key": pa.array([b"k" * 996, b"k" * 997])}, None),
        ({"key": pa.array([b"k", b"k" * 998])}, "the message has more than 1000 bytes, with its key"),
        ({"headers": pa.array([[("n", b"v" * 999)], []], HEADERS)}, "the message has more than 1000 bytes"),
        ({"headers": pa.array([[("n", b"v")], [(None, b"v")]], HEADERS)}, "a header has no name"),
        ({"headers": pa.array([[("n", b"v")], [None]], HEADERS)}, "a header has no name"),
        ({"key": pa.array([None, b"k"])}, "the message is null"),
    ],
)
def test_rows_are_measured_as_they_travel(more: dict[str, pa.Array], why: str | None) -> None:
    """Sizes include key and headers, so this check agrees with every later limit."""
    messages = pa.array([None if why == "the message is null" else b"", b""])
    if why is None:
        sizes = [size for group in written(messages, **more).groups for size in group.message_sizes()]
        assert max(sizes) == 1000
        return
    with pytest.raises(BadRowsError, match=why):
        written(messages, **more)


@pytest.mark.parametrize("other", [2_000_000, 1_500_000])
def test_timestamps_are_those_of_sending(other: int) -> None:
    """Timestamps are whole milliseconds, independent of the start of a batch, or null."""
    sent = [
        delivery(1, b"a", b"b", b"c", accepted_micros=1_500_999),
        delivery(4, b"d", accepted_micros=other),
        delivery(5, b"e"),
    ]
    expected = [1_500_000, 1_500_000, 1_500_000, other, None]
    for start in range(5):
        groups = [part.group for each in sent if (part := each.clip(start, 5))]
        column = read_batch(groups, start + 1).column("timestamp")
        assert column.cast(pa.int64()).to_pylist() == expected[start:]


@pytest.mark.parametrize(
    "keys", [["a", None, "b", "a"], [b"x", b"y", b"x", None], [1, 2, None, 1], ["only"] * 4]
)
def test_fields_grouping_is_everybodys(keys: list[Any]) -> None:
    """Keys of any type, including null, are routed as by the fields grouping of other programs."""
    payloads = [b"0", b"1", b"2", b"3"]
    batch = pa.RecordBatch.from_pydict({"message": payloads, "key": pa.array(keys)})
    expected: dict[int, list[bytes]] = {}
    for task, payload in zip(fields([5, 6, 7]).choose(keys), payloads, strict=True):
        expected.setdefault(task, []).append(payload)
    assert routed(router("fields"), batch) == expected


def test_shuffle_goes_on_from_batch_to_batch() -> None:
    """The rotation continues across batches, and each partition starts at a different task."""
    shuffling = router("shuffle", partition=1)
    batch = pa.RecordBatch.from_pydict({"message": ["a", "b"]})
    assert routed(shuffling, batch) == {6: [b"a"], 7: [b"b"]}
    assert routed(shuffling, batch) == {5: [b"a"], 6: [b"b"]}
    assert groups_of(shuffling, batch.slice(0, 0)) == []


def test_wrong_columns() -> None:
    """The error names the column and the columns that the grouping requires."""
    message = StructType().add("message", StringType())
    check_write_schema(message, GroupingName.SHUFFLE)
    check_write_schema(StructType().add("key", LongType()).add("message", BinaryType()), GroupingName.FIELDS)
    with pytest.raises(ConfigError, match=r"column key is missing: with grouping=fields .* message \(binary"):
        check_write_schema(message, GroupingName.FIELDS)
    with pytest.raises(ConfigError, match="column task has no place in a message: with grouping=shuffle"):
        check_write_schema(message.add("task", IntegerType()), GroupingName.SHUFFLE)
    headers = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
    check_write_schema(
        StructType()
        .add("message", StringType())
        .add("task", IntegerType())
        .add("key", StringType())
        .add("headers", headers),
        GroupingName.DIRECT,
    )
    by_turns = StructType().add("message", StringType())
    with pytest.raises(ConfigError, match="column key is bigint: it may be string or binary, or missing"):
        check_write_schema(by_turns.add("key", LongType()), GroupingName.SHUFFLE)
    mapped = StructType().add("message", StringType()).add("headers", MapType(StringType(), BinaryType()))
    with pytest.raises(ConfigError, match="column headers is map<string,binary>: it may be array<struct<key"):
        check_write_schema(mapped, GroupingName.SHUFFLE)
    with pytest.raises(ConfigError, match="key binary, headers array<struct<key:string,value:binary>>, not"):
        check_read_schema(message, headers=True)
    with pytest.raises(ConfigError, match=r"leave \.schema\(\) out"):
        check_read_schema(message)


def test_large_batches_are_cut_before_they_are_routed() -> None:
    """Large batches are split in order without loss, and small ones are not split."""
    small = pa.RecordBatch.from_pydict({"task": pa.array([1, 2], pa.int32()), "message": [b"a", b"b"]})
    large = pa.RecordBatch.from_pydict(
        {"task": pa.array(range(5), pa.int32()), "message": [bytes([row]) * 800_000 for row in range(5)]}
    )
    cut = list(split_batches([small, small.slice(0, 0), large.slice(1, 4)]))
    assert [rows.num_rows for rows in cut] == [2, 2, 2]
    assert cut[0].equals(small)
    assert pa.concat_batches(cut[1:]).equals(large.slice(1, 4))
