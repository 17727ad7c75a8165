"""A message's key and headers: validation, size and encoding in columns."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tuplewire import TaskGroup, TaskMessage, TaskMessageBatch
from tuplewire.errors import MalformedError, MessageError, MessageTooLargeError
from tuplewire.values.batch import as_groups
from tuplewire.values.group import check_sizes
from tuplewire.values.headers import decode_headers, encode_headers
from tuplewire.wire.messaging_pb2 import MessageHeader, MessageHeaders

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


def test_any_bytes_and_any_iterable() -> None:
    """Keys and values are copied to bytes, and headers may be any iterable."""
    value = bytearray(b"v")
    message = TaskMessage(1, b"x", key=memoryview(b"k"), headers=((name, value) for name in "ab"))  # type: ignore[arg-type,misc]
    value[0] = 0
    assert (message.key, message.headers) == (b"k", (("a", b"v"), ("b", b"v")))


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
    assert "traceparent" in repr(TaskMessage(1, b"x", headers=[TRACE]))
    assert repr(TaskMessage(1, b"x")) == "TaskMessage(task=1, message=b'x')"


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
    batch = TaskMessageBatch.from_groups([TaskGroup.joined(1, None, [b"x", b"y"], [b"\xff\xff", b""])])
    bad, good = batch
    assert (bad.message, good.key, good.headers) == (b"x", None, ())
    with pytest.raises(MalformedError, match="fix the program that sent the message"):
        _ = bad.key
    with pytest.raises(MalformedError, match="are not a MessageHeaders"):
        _ = batch.headers


def test_columns() -> None:
    """A batch has a column of keys and a column of headers; messages may have neither."""
    batch = TaskMessageBatch.from_columns(
        [1, 2, 1], [b"a", b"b", b"c"], keys=[b"k", None, None], headers=[None, [TRACE], None]
    )
    assert batch.keys == [b"k", None, None]
    assert batch.headers == [(), (TRACE,), ()]
    assert [group.encoded_headers() is not None for group in batch.groups] == [True, True]
    assert list(TaskMessageBatch(list(batch))) == list(batch)
    plain = TaskMessageBatch.from_columns(1, [b"a"], keys=[None], headers=[()])
    assert plain.groups[0].plain
    assert (plain.keys, plain.headers) == ([None], [()])


def test_columns_of_other_lengths() -> None:
    """The error names the column with the wrong length."""
    with pytest.raises(MalformedError, match="1 keys and 2 payloads"):
        TaskMessageBatch.from_columns(1, [b"a", b"b"], keys=[b"k"])
    with pytest.raises(MalformedError, match="3 headers and 2 payloads"):
        TaskMessageBatch.from_columns([1, 2], [b"a", b"b"], headers=[None] * 3)


def test_a_batch_has_its_own() -> None:
    """A batch does not accept a separate key, because each message has its own."""
    with pytest.raises(TypeError, match="in a batch, each TaskMessage has its own"):
        as_groups([TaskMessage(1, b"a")], key=b"k")


def test_they_count_in_the_size_of_a_message() -> None:
    """The size limit applies to payload, key and headers together."""
    (group,) = as_groups(1, b"x" * 50, key=b"k" * 50)
    check_sizes([group], group.size_bytes)
    assert 100 < group.size_bytes < 110
    with pytest.raises(MessageTooLargeError):
        check_sizes([group], group.size_bytes - 1)


def test_groups_with_and_without_stay_apart() -> None:
    """Groups with and without headers are not joined; copies of a group keep their headers."""
    plain, headed = TaskGroup.of(1, [b"a"]), as_groups(1, b"b", key=b"k")[0]
    assert not plain.joins(headed)
    assert not headed.joins(plain)
    assert headed.joins(headed)
    assert not headed.plain
    for same in (
        headed.as_redelivered(),
        headed.at(5, 6),
        headed.as_forwarded(7),
        headed.as_forwarded(7).out_of_queue(0),
    ):
        assert same.encoded_headers() == headed.encoded_headers()
        assert same.size_bytes == headed.size_bytes


@pytest.mark.parametrize(
    ("lengths", "data", "says"),
    [
        (b"\1\0\0\0", b"", "says 1 bytes of headers and holds 0"),
        (b"", b"x", "0 bytes of header_lengths for 1 messages"),
        (b"\1\0\0\0" * 2, b"xx", "8 bytes of header_lengths for 1 messages"),
        (b"\2\0\0\0", b"x", "says 2 bytes of headers and holds 1"),
    ],
)
def test_columns_of_headers_that_do_not_fit(lengths: bytes, data: bytes, says: str) -> None:
    """Header lengths that do not match the messages or the data are rejected."""
    group = TaskGroup(1, None, b"\1\0\0\0", b"p", header_lengths=lengths, header_data=data)
    with pytest.raises(MalformedError, match=says):
        group.checked()
