"""The laws of the tuple serializer: packed values arrive unchanged, and no bytes cause harm."""

from __future__ import annotations

import tracemalloc
from datetime import timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tuplewire.errors import MalformedTupleError
from tuplewire.packing.packing import pack_values
from tuplewire_topology.authoring.description import Component, ComponentKind, Topology
from tuplewire_topology.authoring.tuples import Stream, Tuple
from tuplewire_topology.serial.serializer import TupleSerializer

TOPOLOGY = Topology(
    [
        Component(
            "ten", ComponentKind.SPOUT, tuple(Stream(*"abcdefghij"[:n], name=f"s{n}") for n in range(11))
        ),
        Component("many", ComponentKind.SPOUT, (Stream("x", name="ä:b"),), n_tasks=500),
    ]
)
SERIALIZER = TupleSerializer(TOPOLOGY)


def has_surrogate(value: Any) -> bool:
    """Return True if a value is text that UTF-8 cannot encode."""
    return isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value)


zones = (
    st.none()
    | st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]).map(ZoneInfo)
    | st.integers(-86_399_999_999, 86_399_999_999).map(lambda us: timezone(timedelta(microseconds=us)))
)
keys = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
plain = (
    keys
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.decimals()
    | st.uuids()
    | st.dates()
    | st.timedeltas()
    | st.builds(
        lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
        st.datetimes() | st.times(),
        zones,
        st.integers(0, 1),
    )
)
dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.floating_dtypes(sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(sizes=(64, 128))
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.byte_string_dtypes()
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
scalars = hnp.arrays(dtypes, 1).map(lambda array: array[0]).filter(lambda scalar: not has_surrogate(scalar))
values = st.recursive(
    plain | arrays | scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=8,
)


def alike(one: Any, other: Any) -> bool:
    """Return True if two values have the same type and content, to the last bit (repr() of -0.0 differs)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return alike(list(one.items()), list(other.items()))
    if hasattr(one, "tzinfo"):
        naive = (one.replace(tzinfo=None), one.fold, one.tzinfo)
        return naive == (other.replace(tzinfo=None), other.fold, other.tzinfo)
    return repr(one) == repr(other)


message_ids = st.lists(
    st.tuples(
        st.integers(0, 2**31 - 1),
        st.integers() | st.text() | st.binary() | st.tuples(st.text(), st.integers()),
    ),
    max_size=3,
).map(tuple)


@given(st.lists(values, max_size=10), message_ids)
def test_round_trip(row: list[Any], message_id: Any) -> None:
    """A tuple arrives unchanged: its values, their types, its source, and its message id."""
    sent = Tuple(row, TOPOLOGY.source(501, f"s{len(row)}"), message_id)
    received = SERIALIZER.deserialize(SERIALIZER.serialize(sent))
    assert alike(received.values, sent.values)
    assert received.source.wire_id == sent.source.wire_id
    assert received.fields == sent.fields
    assert received.roots == sent.roots


@given(st.integers(1, 500))
def test_every_task_has_its_own_origin(task: int) -> None:
    """The source distinguishes the tasks of one component."""
    received = SERIALIZER.deserialize(SERIALIZER.serialize(Tuple(["x"], TOPOLOGY.source(task, "ä:b"))))
    assert (received.source_component, received.source_task, received.source_stream) == ("many", task, "ä:b")


def outcome(payload: bytes) -> Tuple | None:
    """Read bytes as a tuple with a repr(), or return None if they are malformed. Allow no other error."""
    try:
        received = SERIALIZER.deserialize(payload)
    except MalformedTupleError:
        return None
    assert repr(received)
    return received


HEADS = [SERIALIZER.serialize(Tuple([0] * n, TOPOLOGY.source(501, f"s{n}")))[: -n - 1] for n in range(11)]


def extension(code: int, content: bytes) -> bytes:
    """Return a tuple with one value: an extension, such as a numpy array (code 9) or scalar (code 10)."""
    return HEADS[1] + b"\x91\xc8" + len(content).to_bytes(2, "big") + bytes([code]) + content


dtypes_as_text = st.from_regex(r"[|<>=]?[biufcSUVOmM?][0-9]{0,9}(\[[0-9]{0,9}[a-z]{1,2}\])?", fullmatch=True)
shapes = st.lists(st.integers(-1, 4) | st.integers(), max_size=40)
HOSTILE = {
    "any bytes": st.binary(),
    "any values": st.builds(
        lambda count, rest: HEADS[count] + bytes([0x90 | count]) + rest,
        st.integers(1, 3),
        st.binary(max_size=200),
    ),
    "any extension": st.builds(
        lambda code, content: HEADS[1] + b"\x91\xc7" + bytes([len(content), code]) + content,
        st.integers(0, 255),
        st.binary(max_size=64),
    ),
    "any array": st.builds(
        extension,
        st.sampled_from([9, 10]),
        st.lists(plain | st.lists(plain, max_size=3), max_size=4).map(pack_values),
    ),
    "any dtype and shape": st.builds(
        extension,
        st.just(9),
        st.tuples(dtypes_as_text, shapes, st.binary(max_size=64)).map(list).map(pack_values),
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
@given(st.data())
def test_hostile_payload(kind: str, data: st.DataObject) -> None:
    """Arbitrary content is either a tuple or malformed, without any other error."""
    outcome(data.draw(HOSTILE[kind]))


edges = st.sampled_from([0x00, 0x01, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)


@settings(max_examples=settings().max_examples * 2)
@given(st.lists(values, min_size=1, max_size=2), st.lists(edges, min_size=1, max_size=4), st.data())
def test_damaged_tuple(row: list[Any], damage: list[int], data: st.DataObject) -> None:
    """A valid tuple with some bytes changed is either a tuple or malformed; repr() of tuples works."""
    payload = bytearray(SERIALIZER.serialize(Tuple(row, TOPOLOGY.source(501, f"s{len(row)}"))))
    start = data.draw(st.integers(len(HEADS[len(row)]) + 1, len(payload) - 1))
    payload[start : start + len(damage)] = damage
    outcome(bytes(payload))


@given(st.lists(values, min_size=1, max_size=3), message_ids)
def test_cut_tuple_is_malformed(row: list[Any], message_id: Any) -> None:
    """No prefix of a tuple is a valid tuple, and no bytes may follow a tuple."""
    payload = SERIALIZER.serialize(Tuple(row, TOPOLOGY.source(501, f"s{len(row)}"), message_id))
    for end in range(len(payload)):
        with pytest.raises(MalformedTupleError):
            SERIALIZER.deserialize(payload[:end])
    with pytest.raises(MalformedTupleError, match="1 byte"):
        SERIALIZER.deserialize(payload + b"\x00")


CLAIMS = [
    b"\xdd\xff\xff\xff\xff",  # an array of 2^32-1 items
    b"\xdf\xff\xff\xff\xff\x01",  # a dict of as many
    b"\xdb\xff\xff\xff\xff",  # text
    b"\xc6\xff\xff\xff\xff",  # bytes
    b"\xc9\xff\xff\xff\xff\x02",  # a large int
    b"\xdc\xff\xff",
    b"\xde\xff\xff\x01",
]


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("rest", [b"", b"\xc0" * 1000])
def test_claims_allocate_nothing(claim: bytes, rest: bytes) -> None:
    """A declared size, even if repeated, does not allocate more memory than the present bytes need."""
    payload = HEADS[1] + b"\x91" + claim * 1000 + rest
    outcome(payload)
    tracemalloc.start()
    try:
        assert outcome(payload) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * len(payload)
