"""The tuple serializer: format, errors and thread safety. Its properties are tested in property/."""

from __future__ import annotations

import enum
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tuplewire.errors import MalformedTupleError, UnsupportedValueError
from tuplewire.packing import packing
from tuplewire.packing.packing import MAX_DEPTH
from tuplewire_topology.authoring.description import Component, ComponentKind, Topology
from tuplewire_topology.authoring.tuples import Stream, Tuple
from tuplewire_topology.serial.serializer import TupleSerializer

TOPOLOGY = Topology(
    [
        Component(
            "split", ComponentKind.SPOUT, (Stream("word", "count"), Stream("line", name="errors")), n_tasks=3
        ),
        Component("other", ComponentKind.SPOUT, (Stream("value"),)),
    ]
)
SERIALIZER = TupleSerializer(TOPOLOGY)
ONE = TOPOLOGY.source(1, "default")  # of "other", with one field
TWO = TOPOLOGY.source(2, "default")  # of "split", with two
HEAD = SERIALIZER.serialize(Tuple([None], ONE))[:-1]


def packed(value: Any) -> str:
    """Return the packed form of one value, in hexadecimal."""
    payload = SERIALIZER.serialize(Tuple([value], ONE))
    assert payload.startswith(HEAD)
    return payload[len(HEAD) :].hex()


# Both sides of each step in size; generated with msgpack 1.2.4 (Python), which writes the same bytes.
MESSAGE_PACK: dict[str, list[Any]] = {
    "c0": [None],
    "c2c3": [False, True],
    "007fcc80ccffcd0100cdffffce00010000ceffffffff": [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1],
    "cf0000000100000000cfffffffffffffffff": [2**32, 2**64 - 1],
    "ffe0d0dfd080d1ff7fd18000d2ffff7fff": [-1, -32, -33, -128, -129, -32768, -32769],
    "d280000000d3ffffffff7fffffffd38000000000000000": [-(2**31), -(2**31) - 1, -(2**63)],
    "cb3ff8000000000000": [1.5],
    "a0a2c3bc": ["", "ü"],
    "bf" + 31 * "61" + "d920" + 32 * "61" + "da0100" + 256 * "61": ["a" * 31, "a" * 32, "a" * 256],
    "c400c50100" + 256 * "78": [b"", b"x" * 256],
    "dc0010" + 16 * "00": [[0] * 16],
    "82a161010291c0": [{"a": 1, 2: [None]}],
}


@pytest.mark.parametrize("wanted", MESSAGE_PACK)
def test_message_pack(wanted: str) -> None:
    """Values with a MessagePack form use it, so that other languages can read them."""
    assert "".join(map(packed, MESSAGE_PACK[wanted])) == wanted


EXTENSIONS = [
    ("d4 01 90", ()),
    ("c703 01 920102", (1, 2)),
    ("c709 02 010000000000000000", 2**64),
    ("c709 02 ff7fffffffffffffff", -(2**63) - 1),
    ("d6 03 312e3530", Decimal("1.50")),
    ("c70c 04 07ea 03 01 0a 0b 0c 00000005 00", datetime(2026, 3, 1, 10, 11, 12, 5)),  # noqa: DTZ001 - a naive one
    ("c715 04 07ea 03 01 00 00 00 00000000 00 6f 00000000d693a400",
     datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=1)))),
    ("c71a 04 07ea 0a 19 02 1e 00 00000000 01 7a 4575726f70652f4265726c696e",
     datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)),
    ("d6 05 07ea 03 01", date(2026, 3, 1)),
    ("d7 06 0a 0b 0c 00000005 00", time(10, 11, 12, 5)),
    ("c70c 07 ffffffff 0001517f 00000001", timedelta(microseconds=-999_999)),
    ("d8 08 00010203 04050607 08090a0b 0c0d0e0f", UUID(bytes=bytes(range(16)))),
    ("c70d 09 93 a3 3c6932 91 02 c4 04 0100 ffff", np.array([1, -1], "<i2")),
    ("c709 0a 92 a3 3c6632 c4 02 003c", np.float16(1)),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "value"), EXTENSIONS)
def test_extensions_are_pinned(wanted: str, value: Any) -> None:
    """The form of an extension is stable across releases, because one topology may run two of them."""
    assert packed(value) == wanted.replace(" ", "")


def test_payload_is_pinned() -> None:
    """The form of a complete tuple is stable as well: source, message id, values."""
    payload = SERIALIZER.serialize(Tuple(["the", 1], TWO, ((7, "id"),)))
    assert payload == b"\x93\xaf2:split:default\x92\x07\xa2id\x92\xa3the\x01"


@pytest.mark.parametrize(
    "foreign",
    [
        *(b"\xca\x3f\x80\x00\x00", b"\xcb\x3f\xf0" + bytes(6), b"\xcc\x01", b"\xcd\x00\x01"),
        *(b"\xce\x00\x00\x00\x01", b"\xcf" + bytes(7) + b"\x01", b"\xd0\x01", b"\xd1\x00\x01"),
        *(b"\xd2\x00\x00\x00\x01", b"\xd3" + bytes(7) + b"\x01"),
    ],
)
def test_longer_forms_are_read(foreign: bytes) -> None:
    """Numbers in longer forms than necessary, from other languages, can be read."""
    assert SERIALIZER.deserialize(HEAD + foreign).values == (1,)


class Colour(enum.IntEnum):
    """A subclass of int."""

    RED = 1


class OwnZone(tzinfo):
    """A time zone that is known only in this process."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "own"


Point = namedtuple("Point", "x y")  # noqa: PYI024 - the untyped kind is a subclass of tuple as well
LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "of type object, which has no form"),
        ({1, 2}, "of type set, which has no form"),
        (bytearray(b"x"), "convert it to bytes"),
        (Colour.RED, "Colour, which would arrive as a plain int"),
        (Point(1, 2), "Point, which would arrive as a plain tuple"),
        ({(1, 2): 3}, "a key of a dict is of type tuple"),
        ({2**64: 3}, "a key of a dict is of type int"),
        ([{"when": [object()]}], "of type object"),
        ("\ud800", "surrogates not allowed"),
        (LOOP, "contain themselves"),
        (datetime(2026, 1, 1, tzinfo=OwnZone()), "time zone"),
        (np.array([object()]), "dtype object"),
        (np.zeros(2, [("a", "i4")]), "no form in a message"),
        (np.longdouble(1), "no form in a message"),
        (np.zeros((1,) * 33), "33 axes"),
    ],
)
def test_unsupported_value_names_its_field(value: Any, problem: str) -> None:
    """An unsupported value is an error that names its field and the fix."""
    with pytest.raises(UnsupportedValueError, match=rf"2:split:default.*field 'count': .*{problem}"):
        SERIALIZER.serialize(Tuple(["the", value], TWO))


def nested(depth: int, wrap: Callable[[Any], Any] = lambda value: [value]) -> Any:
    """Return nested containers."""
    value = None
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [lambda value: [value], lambda value: (value,), lambda value: {1: value}],
    ids=["list", "tuple", "dict"],
)
def test_depth_is_bounded(wrap: Callable[[Any], Any]) -> None:
    """The maximum depth is the same for sending and receiving."""
    deepest = Tuple([nested(MAX_DEPTH - 1, wrap)], ONE)
    assert SERIALIZER.deserialize(SERIALIZER.serialize(deepest)).values == deepest.values
    with pytest.raises(UnsupportedValueError, match="nested more than 64 deep"):
        SERIALIZER.serialize(Tuple([nested(MAX_DEPTH, wrap)], ONE))


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\x01"], ids=["list", "dict"])
@pytest.mark.parametrize("depth", [MAX_DEPTH, 100_000])
def test_depth_is_bounded_for_others(opening: bytes, depth: int) -> None:
    """Received bytes that are nested more deeply are refused."""
    with pytest.raises(MalformedTupleError, match="nested more than 64 deep"):
        SERIALIZER.deserialize(HEAD + opening * depth + b"\xc0")


def test_extensions_do_not_recurse() -> None:
    """Nested tuples count towards the depth: thousands would overflow the interpreter's stack."""
    value = b"\x90"
    for _ in range(1000):
        value = b"\x91\xc9" + len(value).to_bytes(4, "big") + b"\x01" + value
    with pytest.raises(MalformedTupleError, match="nested more than 64 deep"):
        SERIALIZER.deserialize(HEAD + value[1:])


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "does not begin as a tuple does"),
        (b"\x80", "does not begin as a tuple does"),
        (b"\x93", "its source: ends too early"),
        (b"\x93\x01", "its source: int in place of text"),
        (b"\x93\x90", "its source: list in place of text"),
        (b"\x93\xa1x", "its source: 'x' does not begin with a task"),
        (b"\x93\xa29:", "its source: task 9 is not"),
        (b"\x93\xaf4:split:unknown", "its source: 'split' has no stream 'unknown'"),
        (b"\x93\xaf3:spilt:default", "its source: .* task 3 is one of 'split'"),
        (b"\x93\xb002:split:default", "its source: .* task 02 is one of 'split'"),
        (b"\x93\xa4\xff\xff\xff\xff", "its source: .*utf-8"),
        (b"\x93\xaf2:split:default\x91\x01", "its message id: no pairs"),
        (b"\x93\xaf2:split:default\x92\xa0\x01", "its message id: no pairs"),
        (b"\x93\xaf2:split:default\x92\xff\x01", "its message id: task -1"),
        (b"\x93\xaf2:split:default\x92\x01\x90", "its message id: .*unhashable"),
        (b"\x93\xaf2:split:default\x90", "its values: ends too early"),
        (b"\x93\xaf2:split:default\x90\xa0", "its values: the tag 0xa0 where an array should begin"),
        (b"\x93\xaf2:split:default\x90\x91\x01", "its values: 1 of them, .* 2 field"),
        (
            b"\x93\xaf2:split:default\x90\x92\xa3the\xc1",
            r"field 'count' \(2 of 2, at byte 23\): the tag 0xc1",
        ),
        (b"\x93\xaf2:split:default\x90\x92\xa3th", r"field 'word' \(1 of 2, .*: ends too early"),
        (b"\x93\xaf2:split:default\x90\x92\xa0\xcb\x00", r"field 'count' \(2 of 2, .*: ends too early"),
        (b"\x93\xaf2:split:default\x90\x92\xa1\xff\x01", r"field 'word' .*utf-8"),
        (b"\x93\xaf2:split:default\x90\x92\x01\x02\x03", "its end: 1 byte"),
    ],
)
def test_malformed_tuple_says_where(payload: bytes, problem: str) -> None:
    """Malformed bytes are an error that contains the position and the problem."""
    with pytest.raises(MalformedTupleError, match=problem):
        SERIALIZER.deserialize(payload)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"\xd4\x0b\x00", "extension type 11, which is not known"),
        (b"\xd5\x01\x90\x00", "1 bytes too many in an extension of type 1"),
        (b"\x81\x90\x01", "the tag 0x90 in place of a dict's key"),
        (b"\x81\xd4\x02\x01\x01", "the tag 0xd4 in place of a dict's key"),
        (b"\x82\x01\x01\x01\x02", "one key twice"),
        (b"\x82\x01\x01\xc3\x02", "one key twice"),
        (b"\xd4\x03x", "Decimal's text is not a number"),
        (b"\xd4\x05x", "1 bytes where 4 are expected"),
        (b"\xd6\x05\x07\xea\x0d\x01", "month must be in 1..12"),
        (b"\xc7\x0c\x04\x07\xea\x01\x01" + bytes(3) + b"\xff" * 4 + b"\x00", "microsecond must be in"),
        (b"\xd7\x06" + bytes(3) + b"\xff" * 4 + b"\x00", "microsecond must be in"),
        (b"\xc7\x0c\x07\x7f\xff\xff\xff" + bytes(8), "a timedelta is out of range"),
        (b"\xc7\x0f\x04\x07\xea\x01\x01" + bytes(8) + b"zXY", "time zone 'XY' is not known here"),
        (b"\xc7\x13\x04\x07\xea\x01\x01" + bytes(8) + b"z../etc", "time zone '../etc.* is not known here"),
        (b"\xc7\x15\x04\x07\xea\x01\x01" + bytes(8) + b"o\x7f" + bytes(7), "strictly between"),
        (b"\xc7\x06\x09\x93\xa1O\x90\xc4\x00", "a numpy value has a dtype"),
        (b"\xc7\x08\x09\x93\xa3<i4\x90\xc4\x00", "with shape .* does not take 0 bytes"),
        (b"\xc7\x09\x09\x93\xa3<i4\x91\xff\xc4\x00", "a numpy array's shape is out of range"),
        (b"\xc7\x09\x0a\x92\xa3|b1\xc4\x01\x02\x00", "too many"),
        (b"\xc7\x08\x0a\x92\xa3|b1\xc4\x01\x02", "neither 0 nor 1"),
        (b"\xc7\x0b\x0a\x92\xa3<U1\xc4\x04\xff\xff\xff\x7f", "outside Unicode"),
    ],
)
def test_malformed_value(value: bytes, problem: str) -> None:
    """A malformed value is an error that describes the problem."""
    with pytest.raises(MalformedTupleError, match=rf"field 'value' .*{problem}"):
        SERIALIZER.deserialize(HEAD + value)


@pytest.mark.parametrize("kind", [int, float])
def test_keys_that_are_numbers_are_bounded(kind: type[int | float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Number keys are limited, because a sender can choose colliding ones; string keys are not."""
    monkeypatch.setattr(packing, "MAX_NUMERIC_KEYS", 3)
    allowed = {kind(number): None for number in range(3)} | dict.fromkeys("abcd")
    assert SERIALIZER.deserialize(SERIALIZER.serialize(Tuple([allowed], ONE)))["value"] == allowed
    with pytest.raises(UnsupportedValueError, match="more than 3 keys that are numbers; use a list of pairs"):
        packed(allowed | {kind(9): None})
    monkeypatch.setattr(packing, "MAX_NUMERIC_KEYS", 4)
    foreign = SERIALIZER.serialize(Tuple([allowed | {kind(9): None}], ONE))
    monkeypatch.setattr(packing, "MAX_NUMERIC_KEYS", 3)
    with pytest.raises(MalformedTupleError, match="more than 3 keys that are numbers"):
        SERIALIZER.deserialize(foreign)


def test_numpy_array_is_the_readers_own() -> None:
    """A received array is writable and aligned."""
    received = SERIALIZER.deserialize(SERIALIZER.serialize(Tuple([np.arange(4.0)], ONE)))[0]
    assert received.flags.writeable
    assert received.flags.aligned
    received += 1
    assert received.tolist() == [1, 2, 3, 4]


def test_serves_several_threads() -> None:
    """Several threads may use one serializer at the same time, from its first tuple on."""
    serializer = TupleSerializer(TOPOLOGY)

    def work(number: int) -> bool:
        sent = Tuple(
            [f"w{number}", {"n": [number] * 5}], TOPOLOGY.source(2 + number % 3, "default"), ((1, number),)
        )
        received = serializer.deserialize(serializer.serialize(sent))
        return (received.values, received.source_task, received.roots) == (
            sent.values,
            sent.source_task,
            sent.roots,
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(2000)))


def test_tuple_is_read_by_field_and_by_position() -> None:
    """Values are accessed by name or position, and can be unpacked."""
    message = Tuple(["the", 1], TWO, ((4, "id"),))
    word, count = message
    assert (word, count) == (message["word"], message["count"]) == (message[0], message[-1]) == ("the", 1)
    assert (len(message), message.as_dict()) == (2, {"word": "the", "count": 1})
    assert (message.source_component, message.source_task, message.source_stream) == ("split", 2, "default")
    assert not message.is_tick


def test_unknown_field() -> None:
    """An unknown field is an error that lists the known fields."""
    with pytest.raises(KeyError, match=r"'wrod' is not a field .* word, count"):
        Tuple(["the", 1], TWO)["wrod"]


def test_tuple_can_be_shown() -> None:
    """The representation of a tuple is short, even for an int that Python refuses to print."""
    for value in (10**5000, "x" * 10_000, list(range(10_000)), nested(60)):
        assert len(repr(Tuple([value], ONE))) < 200


def test_neighbours_are_told_apart() -> None:
    """Caching of a common prefix does not confuse consecutive tuples."""
    ids = ((), ((5, 1),), ((5, 128),), ((5, "ab"),), ((5, "abc"),), ((5, "x" * 300),), ((5, 1), (6, 1)))
    tuples = [
        Tuple([value], source, message_id)
        for value in ("a", "b")
        for source in (ONE, TOPOLOGY.source(2, "errors"))
        for message_id in ids
        for _ in range(2)
    ]
    serializer = TupleSerializer(TOPOLOGY)
    payloads = list(map(serializer.serialize, tuples))
    assert payloads == [TupleSerializer(TOPOLOGY).serialize(each) for each in tuples]
    read = list(map(serializer.deserialize, payloads))
    assert [(each.values, each.source.wire_id, each.roots) for each in read] == [
        (each.values, each.source.wire_id, each.roots) for each in tuples
    ]
