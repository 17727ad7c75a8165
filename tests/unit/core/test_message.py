"""Messages, groups, batches, keys, headers, requests: single cases. Properties: property/test_batch.py."""

from __future__ import annotations

import pickle
import time
from array import array
from typing import Any

import numpy as np
import pytest

from tuplewire.errors import InvalidTaskError, MalformedError, MessageError, MessageTooLargeError
from tuplewire.request_reply import CORRELATION, build_answer
from tuplewire.values.batch import TaskMessageBatch, as_groups
from tuplewire.values.group import TaskGroup, check_sizes, check_task
from tuplewire.values.headers import DEADLINE, REPLY_TO, decode_headers, encode_headers
from tuplewire.values.message import SHUTDOWN_MESSAGE, SHUTDOWN_TASK, TaskMessage
from tuplewire.wire.messaging_pb2 import MessageHeader, MessageHeaders

OUTSIDE = [-1, 2**31, 2**70, -(2**70), np.int64(-1), np.int64(2**40)]
NO_INTEGERS: list[Any] = [1.0, "1", None, b"1", np.float64(1), True, False]


class TestTaskMessage:
    def test_storms_bytes(self) -> None:
        """A packet is the id in two bytes, big-endian, followed by the payload."""
        assert TaskMessage(258, b"ab").serialize() == b"\x01\x02ab"
        assert TaskMessage.deserialize(b"\x01\x02ab") == TaskMessage(258, b"ab")

    def test_shutdown(self) -> None:
        """Storm's shutdown notice, task -1, can be serialized and deserialized."""
        assert (SHUTDOWN_MESSAGE.task, SHUTDOWN_MESSAGE.message) == (SHUTDOWN_TASK, b"")
        assert SHUTDOWN_MESSAGE.serialize() == b"\xff\xff"
        assert TaskMessage.deserialize(b"\xff\xff") == SHUTDOWN_MESSAGE

    @pytest.mark.parametrize("task", [32768, 2**31 - 1])
    def test_does_not_fit(self, task: int) -> None:
        """An id that does not fit into two bytes is rejected, and the error names an alternative."""
        with pytest.raises(InvalidTaskError, match=r"two-byte task id.*through a transport"):
            TaskMessage(task, b"").serialize()

    def test_parts_are_plain(self) -> None:
        """Integer-like and bytes-like values are converted, so later changes to them have no effect."""
        buffer = bytearray(b"ab")
        message = TaskMessage(np.int64(7), memoryview(buffer))
        buffer[:] = b"xx"
        assert (type(message.task), message.task) == (int, 7)
        assert (type(message.message), message.message, message.payload) == (bytes, b"ab", b"ab")

    @pytest.mark.parametrize(
        ("packet", "error", "says"),
        [
            (b"", MalformedError, "this is 0 byte"),
            (b"\x00", MalformedError, "this is 1 byte"),
            (b"\xff\xfe", InvalidTaskError, "task -2"),
            ("ab", MessageError, "not str; encode it first"),
        ],
    )
    def test_no_packet(self, packet: Any, error: type[Exception], says: str) -> None:
        """Text, a packet without a complete id, and a task below -1 are rejected."""
        with pytest.raises(error, match=says):
            TaskMessage.deserialize(packet)


class TestTaskIds:
    @pytest.mark.parametrize("task", [0, 2**31 - 1, np.int64(7), np.uint8(7)])
    def test_integers(self, task: int) -> None:
        """Every kind of integer is an id, and becomes an int."""
        for given in (
            check_task(task),
            TaskMessageBatch.from_columns(task, [b""], sources=task).tasks[0],
            TaskMessageBatch.from_columns([task], [b""]).tasks[0],
            TaskMessageBatch([TaskMessage(task, b"")]).tasks[0],
        ):
            assert (type(given), given) == (int, int(task))

    @pytest.mark.parametrize("task", [*OUTSIDE, *NO_INTEGERS])
    def test_refused(self, task: Any) -> None:
        """Anything except an integer from 0 to 2^31-1 raises an InvalidTaskError in every function."""
        for build in (
            lambda: check_task(task),
            lambda: TaskGroup.of(task, [b""]),
            lambda: TaskMessage(task, b""),
            lambda: TaskMessageBatch.from_columns([1, task], [b"", b""]),
            lambda: TaskMessageBatch.from_columns(1, [b"", b""], sources=[1, task]),
        ):
            with pytest.raises(InvalidTaskError):
                build()


class TestPayloads:
    @pytest.mark.parametrize(
        "payload", [b"ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"xaxb")[1::2], np.bytes_(b"ab")]
    )
    def test_bytes_like(self, payload: bytes) -> None:
        """Any bytes-like value is a payload, and becomes bytes."""
        for batch in (
            TaskMessageBatch([TaskMessage(1, payload)]),
            TaskMessageBatch.from_columns(1, [payload]),
            TaskMessageBatch.from_columns([1], [payload]),
            TaskMessageBatch.from_groups([TaskGroup.of(1, [payload])]),
        ):
            assert type(batch.payloads[0]) is bytes
            assert batch[0] == TaskMessage(1, b"ab")

    def test_own_copy(self) -> None:
        """Later changes to a bytearray or to the columns do not change the batch."""
        tasks = [1, 2]
        payloads: list[Any] = [bytearray(b"a"), b"b"]
        batch = TaskMessageBatch.from_columns(tasks, payloads)
        payloads[0][:] = b"x"
        tasks[0], payloads[1] = 9, b"x"
        assert list(batch) == [TaskMessage(1, b"a"), TaskMessage(2, b"b")]

    def test_wide_items(self) -> None:
        """A buffer of wide items is measured in bytes."""
        numbers = memoryview(array("I", [1, 2]))
        group = TaskGroup.of(1, [numbers, b"x"])
        assert list(group.payload_sizes()) == [8, 1]
        assert group.payloads() == [numbers.tobytes(), b"x"]

    @pytest.mark.parametrize("payload", ["ab", 5, None, [1, 2], [b"x"]])
    def test_refused(self, payload: Any) -> None:
        """Anything else raises a MessageError that names its type."""
        for build in (
            lambda: TaskMessage(1, payload),
            lambda: TaskMessageBatch.from_columns(1, [b"", payload]),
            lambda: TaskMessageBatch.from_columns([1, 1], [b"", payload]),
            lambda: TaskGroup.of(1, [payload]),
        ):
            with pytest.raises(MessageError, match=f"not {type(payload).__name__}"):
                build()

    def test_no_messages(self) -> None:
        """Other values than TaskMessages are rejected, and the error recommends from_columns."""
        pairs: Any = [(1, b"ab")]
        with pytest.raises(MessageError, match=r"this is a tuple.*from_columns"):
            TaskMessageBatch(pairs)


class TestColumns:
    @pytest.mark.parametrize(
        ("tasks", "others", "says"),
        [
            ([1], {}, "differ in length"),
            ([1, 2, 3], {}, "differ in length"),
            ([1, 2], {"sources": [1]}, "differ in length"),
            (1, {"sources": [1]}, "differ in length"),
            (1, {"keys": [b"k"]}, "1 keys and 2 payloads"),
            ([1, 2], {"headers": [None] * 3}, "3 headers and 2 payloads"),
        ],
    )
    def test_lengths(self, tasks: Any, others: dict[str, Any], says: str) -> None:
        """Columns of different lengths are malformed."""
        with pytest.raises(MalformedError, match=says):
            TaskMessageBatch.from_columns(tasks, [b"a", b"b"], **others)


class TestTaskGroup:
    @pytest.mark.parametrize(
        ("lengths", "data"),
        [
            (b"", b""),
            (b"\x01\0\0", b"a"),
            (b"\x01\0\0\0\0", b"a"),
            (b"\x02\0\0\0", b"a"),
            (b"\0\0\0\0", b"a"),
            (b"\xff\xff\xff\xff", b"a"),
            (b"\xff\xff\xff\xff\x02\0\0\0", b"a"),  # 1 if the sum overflows
        ],
    )
    def test_hostile(self, lengths: bytes, data: bytes) -> None:
        """Columns that do not match each other are malformed."""
        with pytest.raises(MalformedError):
            TaskGroup(1, None, lengths, data).validate()

    @pytest.mark.parametrize(("task", "source"), [(-1, None), (1, -1), (2**31, 1), (1, 2**31)])
    def test_hostile_ids(self, task: int, source: int | None) -> None:
        """Ids out of range are rejected."""
        with pytest.raises(InvalidTaskError):
            TaskGroup(task, source, b"\x01\0\0\0", b"a").validate()

    def test_redelivered(self) -> None:
        """Slices, sums and pickles of batches that were built from groups keep the mark."""
        batch = TaskMessageBatch.from_groups([TaskGroup.of(1, [b"a", b"b", b"c"]).as_redelivered()])
        assert batch.payloads == [b"a", b"b", b"c"]  # reading creates columns; the groups must remain
        for kept in (batch[1:], batch + batch, pickle.loads(pickle.dumps(batch))):  # noqa: S301
            assert all(part.redelivered for part in kept.groups)


class TestAsGroups:
    def test_forms(self) -> None:
        """A task with its payload, a batch and an iterable of messages produce the same groups."""
        message = TaskMessage(1, b"a")
        batch = TaskMessageBatch([message])
        for groups in (as_groups(1, b"a"), as_groups(batch), as_groups(iter([message]))):
            assert TaskMessageBatch.from_groups(groups) == batch

    def test_source(self) -> None:
        """The sending task is set only for messages without a source."""
        named, bare = TaskGroup.of(1, [b"a"], 4), TaskGroup.of(1, [b"b"])
        batch = TaskMessageBatch.from_groups([named, bare])
        assert [group.source for group in as_groups(batch, source=7)] == [4, 7]
        assert [group.source for group in as_groups(1, b"a", source=7)] == [7]

    def test_misuse(self) -> None:
        """A task without a payload, a payload without a task, and a separate key of a batch are errors."""
        with pytest.raises(TypeError, match="the payload is missing"):
            as_groups(1)
        for single in (b"", bytearray(), "", dict[str, int](), TaskMessage(1, b"a")):
            with pytest.raises(MessageError, match="send TaskMessages, or a task and a payload, not a "):
                as_groups(single)
        with pytest.raises(InvalidTaskError, match="a task id is an integer"):
            as_groups(TaskMessageBatch(), b"a")
        with pytest.raises(TypeError, match="in a batch, each TaskMessage has its own"):
            as_groups([TaskMessage(1, b"a")], key=b"k")


def test_check_sizes() -> None:
    """One payload over the limit raises an error with its task and size; many small ones do not."""
    small, large = TaskGroup.of(1, [b"aa"] * 5), TaskGroup.of(2, [b"a", b"aaaa", b"aaa"])
    check_sizes([small, large], 4)
    with pytest.raises(MessageTooLargeError, match="4 bytes to task 2 exceeds the limit of 3"):
        check_sizes([small, large], 3)


TRACE = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


@pytest.mark.parametrize("key", [None, b"", b"k" * 300])
@pytest.mark.parametrize("headers", [(), (TRACE,), (("a", b"1"), ("b", b""), ("a", b"2"), ("", b"\xff"))])
def test_they_are_what_was_given(key: bytes | None, headers: tuple[tuple[str, bytes], ...]) -> None:
    """A message keeps its key and headers; an empty key differs from a missing key."""
    message = TaskMessage(1, b"x", key=key, headers=headers)
    assert (message.key, message.headers) == (key, headers)
    assert (key is None and not headers) == (message == TaskMessage(1, b"x"))
    again = pickle.loads(pickle.dumps(message))  # noqa: S301
    assert (again, hash(again), again.key, again.headers) == (message, hash(message), key, headers)


def test_a_value_may_be_null() -> None:
    """A null header value differs from an empty one."""
    headers = (("a", None), ("b", b""))
    assert TaskMessage(1, b"", headers=headers).headers == headers
    written = MessageHeaders.FromString(encode_headers(None, headers)).headers
    assert list(written) == [MessageHeader(name="a"), MessageHeader(name="b", value=b"")]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"key": "k"}, "a key is bytes, not str; encode it first"),
        ({"key": 7}, "a key is bytes, not int"),
        ({"headers": {"a": b"1"}}, r"headers are pairs, not a dict; pass list\(headers.items\(\)\)"),
        ({"headers": [("a", "1")]}, "the value of the header 'a' is bytes, not str; encode it first"),
        ({"headers": [("a", 7)]}, "the value of the header 'a' is bytes, not int"),
        ({"headers": [(None, b"1")]}, "a header's name is a str, not NoneType"),
        ({"headers": [(b"a", b"1")]}, "a header's name is a str, not bytes: b'a'"),
        ({"headers": ["ab", b"c"]}, "the value of the header 'a' is bytes, not str"),
        ({"headers": [("a", b"1", b"2")]}, r"headers are pairs of a name \(str\) and a value \(bytes\), not"),
        ({"headers": 7}, "headers are pairs .* not 7"),
        ({"headers": [("\ud800", b"1")]}, "headers are pairs"),
    ],
)
def test_wrong_ones_are_refused_where_they_are_made(given: dict[str, Any], why: str) -> None:
    """The error names the invalid value and the solution."""
    with pytest.raises(MessageError, match=why):
        TaskMessage(1, b"x", **given)
    with pytest.raises(MessageError, match=why):
        as_groups(1, b"x", **given)


def test_a_message_cannot_be_changed() -> None:
    """The task, payload, key and headers of a message cannot be changed."""
    message = TaskMessage(1, b"x", key=b"k")
    for name in ("task", "message", "key", "headers"):
        with pytest.raises(AttributeError):
            setattr(message, name, b"y")
        with pytest.raises(AttributeError):
            delattr(message, name)
    assert message == TaskMessage(1, b"x", key=b"k")


def test_the_wire_has_the_contract_form() -> None:
    """The encoding is a MessageHeaders message, which any program can read and write."""
    encoded = encode_headers(b"k", [("a", b"1")])
    assert MessageHeaders.FromString(encoded) == MessageHeaders(
        key=b"k", headers=[MessageHeader(name="a", value=b"1")]
    )
    later = encoded + b"\xfa\x01\x01x"  # a field of a later release
    assert decode_headers(later) == (b"k", (("a", b"1"),))


def test_what_another_program_wrote_wrong() -> None:
    """The payload stays readable; reading the key raises an error that names the program to fix."""
    batch = TaskMessageBatch.from_groups([TaskGroup.from_checked(1, None, [b"x", b"y"], [b"\xff\xff", b""])])
    bad, good = batch
    assert (bad.message, good.key, good.headers) == (b"x", None, ())
    with pytest.raises(MalformedError, match="fix the program that sent the message"):
        _ = bad.key
    with pytest.raises(MalformedError, match="are not a MessageHeaders"):
        _ = batch.headers


def test_they_count_in_the_size_of_a_message() -> None:
    """The size limit applies to payload, key and headers together."""
    (group,) = as_groups(1, b"x" * 50, key=b"k" * 50)
    assert 100 < group.size_bytes < 110
    with pytest.raises(MessageTooLargeError):
        check_sizes([group], group.size_bytes - 1)


def test_groups_with_and_without_stay_apart() -> None:
    """Groups with and without headers are not joined."""
    plain, headed = TaskGroup.of(1, [b"a"]), as_groups(1, b"b", key=b"k")[0]
    assert not plain.can_follow(headed)
    assert not headed.can_follow(plain)
    assert headed.can_follow(headed)
    assert not headed.payload_only


@pytest.mark.parametrize(
    ("lengths", "data", "says"),
    [
        (b"\1\0\0\0", b"", "0 bytes of headers to task 1, but lengths for 1"),
        (b"", b"x", "0 bytes of header_lengths for 1 messages"),
        (b"\1\0\0\0" * 2, b"xx", "8 bytes of header_lengths for 1 messages"),
        (b"\2\0\0\0", b"x", "1 bytes of headers to task 1, but lengths for 2"),
    ],
)
def test_columns_of_headers_that_do_not_fit(lengths: bytes, data: bytes, says: str) -> None:
    """Header lengths that do not match the messages or the data are rejected."""
    group = TaskGroup(1, None, b"\1\0\0\0", b"p", header_lengths=lengths, header_data=data)
    with pytest.raises(MalformedError, match=says):
        group.validate()


def test_an_answer_belongs_to_its_request() -> None:
    """The answer goes to the requested task, with the id of the request."""
    message = TaskMessage(2, b"x", headers=[(REPLY_TO, b"7"), (CORRELATION, b"id")])
    assert (message.is_request, message.expired) == (True, False)
    answer = build_answer(message, b"y")
    assert (answer.task, answer.payload, answer.headers) == (7, b"y", ((CORRELATION, b"id"),))
    assert not answer.is_request


@pytest.mark.parametrize(("seconds", "expired"), [(-1, True), (60, False)])
def test_deadlines(seconds: int, expired: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A request expires at its deadline."""
    deadline = b"%d" % ((time.time() + seconds) * 1000)
    assert TaskMessage(2, b"x", headers=[(DEADLINE, deadline)]).expired == expired


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"9" * 5000, "\u0663".encode(), None])
def test_malformed_headers(value: bytes | None) -> None:
    """Headers without a number count as missing, and so does an invalid task for the answer."""
    message = TaskMessage(2, b"x", headers=[(REPLY_TO, value), (DEADLINE, value)])
    for each in (message, TaskMessage(2, b"x", headers=[(REPLY_TO, b"2147483648")])):
        assert (each.is_request, each.expired) == (False, False)
        with pytest.raises(MessageError, match="not a request"):
            build_answer(each, b"y")
