"""The laws of TaskMessageBatch: it behaves like a plain list of (source, task, payload)."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplewire.errors import InvalidTaskError, MalformedError
from tuplewire.session.pieces import frame_pieces, max_piece_messages
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import TaskMessage
from tuplewire.wire.codec import decode, encode_frame
from tuplewire.wire.codec import groups_of as groups_of_frame
from tuplewire.wire.messaging_pb2 import SendRequest
from tuplewire.wire.opaque_pb2 import OpaqueFrame

Row = tuple[int, int, bytes]  # source (-1: none), task, payload

tasks = st.integers(0, 3) | st.integers(0, 2**31 - 1)
# Groups with payloads of one size use a different code path.
payloads = st.binary(max_size=6) | st.binary(min_size=4, max_size=4)
rows = st.tuples(st.sampled_from([-1, -1, 0, 7]), tasks, payloads)
slices = st.builds(
    slice, *[st.none() | st.integers(-12, 12)] * 2, st.none() | st.integers(-3, 3).filter(lambda step: step)
)


def by_pair(model: list[Row]) -> dict[tuple[int, int], list[bytes]]:
    """Return the payloads of each (source, task), in order."""
    buckets = defaultdict(list)
    for source, task, payload in model:
        buckets[source, task].append(payload)
    return dict(buckets)


def groups_of(model: list[Row]) -> list[TaskGroup]:
    """Return a group for each run of rows with one source and task."""
    groups: list[TaskGroup] = []
    run: list[bytes] = []
    for entry_sequence, (source, task, payload) in enumerate(model):
        run.append(payload)
        following = model[entry_sequence + 1][:2] if entry_sequence + 1 < len(model) else None
        if following != (source, task):
            groups.append(TaskGroup.of(task, run, None if source < 0 else source))
            run = []
    return groups


def of_columns(model: list[Row]) -> TaskMessageBatch:
    """Build from columns. A column has no missing sources, so runs without one are built separately."""
    batch = TaskMessageBatch()
    start = 0
    while start < len(model):
        stop = start
        while stop < len(model) and (model[stop][0] < 0) == (model[start][0] < 0):
            stop += 1
        part = model[start:stop]
        sources = None if part[0][0] < 0 else [row[0] for row in part]
        batch += TaskMessageBatch.from_columns(
            [row[1] for row in part], [row[2] for row in part], sources=sources
        )
        start = stop
    return batch


@st.composite
def batches(draw: st.DrawFn) -> tuple[TaskMessageBatch, list[Row]]:
    """Make a batch, in one of its two forms, and the list that it should behave like."""
    model = draw(st.lists(rows, max_size=12))
    if draw(st.booleans()):
        return of_columns(model), model
    batch = TaskMessageBatch.from_groups(groups_of(model))
    if draw(st.booleans()):
        list(batch)  # adds the columns to the groups
    return batch, model


def rows_of(batch: TaskMessageBatch) -> list[Row]:
    """Read a batch through its columns."""
    return list(zip(batch.sources, batch.tasks, batch.payloads, strict=True))


@given(batches())
def test_reads_as_a_list(pair: tuple[TaskMessageBatch, list[Row]]) -> None:
    """Length, size, iteration and indexing are the same as for the list."""
    batch, model = pair
    messages = [TaskMessage(task, payload) for _, task, payload in model]
    assert len(batch) == len(model)
    assert batch.nbytes == sum(len(row[2]) for row in model)
    assert list(batch) == messages
    assert rows_of(batch) == model
    for index in range(-len(model), len(model)):
        assert batch[index] == messages[index]
    for index in (len(model), -len(model) - 1):
        with pytest.raises(IndexError):
            batch[index]


@given(batches(), slices)
def test_slices(pair: tuple[TaskMessageBatch, list[Row]], part: slice) -> None:
    """A slice equals the slice of the list, and its groups agree with it."""
    batch, model = pair
    piece = batch[part]
    assert len(piece) == len(model[part])
    assert rows_of(piece) == model[part]
    assert group_payloads(piece) == by_pair(model[part])


def group_payloads(batch: TaskMessageBatch) -> dict[tuple[int, int], list[bytes]]:
    """Read a batch through its groups; no group may be empty."""
    found = defaultdict(list)
    for group in batch.groups:
        assert len(group) == len(group.payload_sizes()) > 0
        found[-1 if group.source is None else group.source, group.task].extend(group.payloads())
    return dict(found)


@given(batches())
def test_group_by_task(pair: tuple[TaskMessageBatch, list[Row]]) -> None:
    """Grouping by task splits the list, and keeps the order within each (source, task)."""
    batch, model = pair
    parts = batch.group_by_task()
    assert parts.keys() == {row[1] for row in model}
    for task, part in parts.items():
        assert set(part.tasks) == {task}
        assert group_payloads(part) == by_pair([row for row in model if row[1] == task])


@given(batches(), st.lists(rows, max_size=12))
def test_equality(pair: tuple[TaskMessageBatch, list[Row]], other: list[Row]) -> None:
    """Two batches are equal if their lists are equal, in any form; then their hashes are equal, too."""
    batch, model = pair
    for again in (of_columns(model), TaskMessageBatch.from_groups(groups_of(model))):
        assert batch == again
        assert hash(batch) == hash(again)
    assert (batch == of_columns(other)) == (model == other)


@given(batches())
def test_copies(pair: tuple[TaskMessageBatch, list[Row]]) -> None:
    """Groups and pickles contain every message once, in order within each (source, task)."""
    batch, model = pair
    again = pickle.loads(pickle.dumps(batch))  # noqa: S301
    assert rows_of(again) == model
    for each in (batch, again, TaskMessageBatch.from_groups(batch.groups)):
        assert group_payloads(each) == by_pair(model)


@given(batches())
def test_arrow(pair: tuple[TaskMessageBatch, list[Row]]) -> None:
    """Conversion to Arrow, back, and to pandas keeps the messages, in the order of iteration."""
    batch, model = pair
    table, frame = batch.to_arrow(), batch.to_pandas()
    table.validate(full=True)
    assert table.column("task").to_pylist() == frame["task"].tolist() == [row[1] for row in model]
    assert table.column("source").to_pylist() == [None if row[0] < 0 else row[0] for row in model]
    assert frame["source"].fillna(-1).tolist() == [row[0] for row in model]
    assert table.column("message").to_pylist() == [row[2] for row in model] == list(batch.payloads)
    assert frame["message"].tolist() == list(batch.payloads)
    back = TaskMessageBatch.from_arrow(table.column("task"), table.column("message"), source=7)
    assert group_payloads(back) == by_pair([(7, *row[1:]) for row in model])
    assert back.tasks.tolist() == sorted(row[1] for row in model)  # type: ignore[attr-defined]


@given(st.lists(st.tuples(tasks, payloads), max_size=12), slices)
def test_from_arrow(model: list[tuple[int, bytes]], part: slice) -> None:
    """Sliced Arrow columns give the same batch as the sliced lists, sorted by task."""
    column = pa.array([task for task, _ in model], pa.int64())
    messages = pa.array([payload for _, payload in model], pa.binary())
    if part.step in {None, 1}:
        start, stop, _ = part.indices(len(model))
        column, messages = (c.slice(start, max(stop - start, 0)) for c in (column, messages))
        model = model[part]
    batch = TaskMessageBatch.from_arrow(column, messages)
    assert [(m.task, m.message) for m in batch] == sorted(model, key=lambda row: row[0])


@given(st.lists(st.tuples(payloads, st.just(b"") | payloads), min_size=1, max_size=12), st.integers(0, 20))
def test_frame_pieces(model: list[tuple[bytes, bytes]], limit: int) -> None:
    """The pieces add up to the group. Each is within the limit or one message, and cannot hold more."""
    group = TaskGroup.from_checked(1, None, [row[0] for row in model], [row[1] for row in model])
    pieces = frame_pieces(group, limit)
    assert [
        row
        for piece in pieces
        for row in zip(piece.payloads(), piece.encoded_headers() or [b""] * len(piece), strict=True)
    ] == model
    for piece in pieces:
        assert piece.size_bytes == sum(piece.message_sizes())
        assert piece.size_bytes <= limit or len(piece) == 1
    most = max_piece_messages(group, limit)
    for piece, following in pairwise(pieces):
        assert len(piece) == most or piece.size_bytes + following.message_sizes()[0] > limit


names = st.text(max_size=3) | st.just("traceparent")
headed = st.builds(
    TaskMessage,
    tasks,
    payloads,
    key=st.none() | st.binary(max_size=3),
    headers=st.none() | st.lists(st.tuples(names, st.binary(max_size=3)), max_size=3),
)
mixed = st.lists(headed | st.builds(TaskMessage, tasks, payloads), max_size=12)


def by_task(messages: Iterable[TaskMessage]) -> dict[int, list[TaskMessage]]:
    """Return the messages to each task, in order."""
    found = defaultdict(list)
    for message in messages:
        found[message.task].append(message)
    return dict(found)


@given(mixed, mixed, slices, st.integers(1, 20))
def test_headers_stay_with_their_messages(
    left: list[TaskMessage], right: list[TaskMessage], part: slice, limit: int
) -> None:
    """Every message keeps its key and headers when batches are cut, joined, grouped or written."""
    batch, model = TaskMessageBatch(left), left + right
    total = batch + TaskMessageBatch(right)
    grouped = TaskMessageBatch.from_groups(batch.groups) + TaskMessageBatch.from_groups(
        TaskMessageBatch(right).groups
    )
    assert list(total) == model
    assert list(total[part]) == model[part]
    assert by_task(grouped) == by_task(model)
    assert list(grouped[part]) == list(grouped)[part]
    assert pickle.loads(pickle.dumps(total)) == total  # noqa: S301
    assert total.keys == [message.key for message in model]
    assert total.headers == [message.headers for message in model]
    assert by_task(
        TaskMessageBatch.from_columns(
            [message.task for message in model],
            [message.message for message in model],
            keys=total.keys,
            headers=total.headers,
        )
    ) == by_task(model)
    pieces = [piece for group in total.groups for piece in frame_pieces(group, limit)]
    assert by_task(TaskMessageBatch.from_groups(pieces)) == by_task(model)
    runs: list[list[TaskGroup]] = []
    for piece in pieces:
        if runs and piece.can_follow(runs[-1][-1]):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    frame = decode(SendRequest, encode_frame(1, runs))
    assert isinstance(frame, OpaqueFrame)
    assert by_task(TaskMessageBatch.from_groups(groups_of_frame(frame))) == by_task(model)


@given(mixed)
def test_headers_in_arrow(model: list[TaskMessage]) -> None:
    """Conversion to Arrow and back returns the same keys and headers, in order, with the same encoding."""
    table = TaskMessageBatch(model).to_arrow(headers=True)
    table.validate(full=True)
    assert table.column("key").to_pylist() == [message.key for message in model]
    assert [
        tuple((header["key"], header["value"]) for header in each or ())
        for each in table.column("headers").to_pylist()
    ] == [message.headers for message in model]
    back = TaskMessageBatch.from_arrow(
        table.column("task"),
        table.column("message"),
        keys=table.column("key"),
        headers=table.column("headers"),
    )
    assert by_task(back) == by_task(model)


@given(st.binary(max_size=12))
def test_deserialize(packet: bytes) -> None:
    """Arbitrary bytes are either rejected with a specific error, or read and serialized to the same bytes."""
    try:
        message = TaskMessage.deserialize(packet)
    except (InvalidTaskError, MalformedError):
        return
    assert message.serialize() == packet
