"""The frame codec, compared with the generated code, and with hostile bytes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.pieces import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from tuplewire.errors import InvalidTaskError, MalformedError
from tuplewire.values.columns import varint
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode, encode_frame, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import code_name

KINDS: tuple[Any, ...] = (pb.SendRequest, pb.RecvResponse)

pytestmark = pytest.mark.timeout(0 if LONG else 300)

EXAMPLES = settings(
    max_examples=20_000 if LONG else settings().max_examples * 3 // 2, deadline=None, print_blob=True
)

ids = st.integers(0, 3) | st.integers(0, 2**31 - 1)
uint64 = st.integers(0, 300) | st.integers(0, 2**64 - 1)
payloads = st.lists(st.binary(max_size=200), min_size=1, max_size=5)
# The encoded lengths of these payloads take one, two and three bytes.
long_payloads = st.builds(lambda size, count: [bytes(size)] * count, st.integers(0, 400), st.integers(1, 60))


def headers_of(count: int) -> st.SearchStrategy[list[bytes]]:
    """Return headers for `count` payloads; at least one payload has headers."""
    size = st.just(300) | st.integers(0, 3)
    return st.lists(size.map(bytes), min_size=count, max_size=count).filter(any)


@st.composite
def runs(draw: st.DrawFn) -> list[list[TaskGroup]]:
    """Return runs: groups with the same task, source and mark."""
    result = []
    for _ in range(draw(st.integers(0, 4))):
        task, source, redelivered = draw(ids), draw(st.none() | ids), draw(st.booleans())
        worker = draw(st.sampled_from([0, 1, 2**32 - 1]))
        columns = draw(st.lists(payloads | long_payloads, min_size=1, max_size=3))
        headed = draw(st.booleans())
        groups = [
            TaskGroup.from_checked(task, source, each, draw(headers_of(len(each))) if headed else None)
            for each in columns
        ]
        if redelivered:
            groups = [group.as_redelivered() for group in groups]
        result.append([group.as_forwarded(worker) if worker else group for group in groups])
    return result


def frame_of(sequence: int, groups: Sequence[Sequence[TaskGroup]], firsts: Sequence[int] = ()) -> pb.Frame:
    """Return the same frame, built with the generated code."""
    return pb.Frame(
        sequence=sequence,
        groups=[
            pb.Group(
                task=run[0].task,
                source=run[0].source,
                lengths=[length for group in run for length in group.payload_sizes()],
                data=b"".join(group.data for group in run),
                first_sequence=firsts[position] if firsts else 0,
                redelivered=run[0].redelivered,
                path=run[0].path,
                retained_upstream=run[0].retained_upstream,
                header_lengths=[length for group in run for length in group.header_sizes()],
                header_data=b"".join(group.header_data for group in run),
            )
            for position, run in enumerate(groups)
        ],
    )


def frame_in(kind: Any, data: bytes) -> OpaqueFrame:
    """Decode a message that must contain a frame."""
    frame = decode(kind, data)
    assert isinstance(frame, OpaqueFrame)
    return frame


def read_back(frame: OpaqueFrame) -> pb.Frame:
    """Return a decoded frame and all contents of its groups, in the generated code's form."""
    groups = [[group] for group in groups_of(frame)]
    return frame_of(frame.sequence, groups, [group.first_sequence for group in frame.groups])


def field(number: int, body: bytes) -> bytes:
    """Return a protobuf field with a length."""
    return varint(number << 3 | 2) + varint(len(body)) + body


@EXAMPLES
@given(uint64, runs(), st.sampled_from(["", "at once"]))
def test_encoded_frame_is_a_send_request(sequence: int, groups: list[list[TaskGroup]], at_once: str) -> None:
    """The generated code reads exactly the frame that it would have written."""
    ack_requested = bool(at_once)
    data = encode_frame(sequence, groups, ack_immediately=ack_requested)
    wanted = frame_of(sequence, groups)
    wanted.ack_immediately = ack_requested
    assert pb.SendRequest.FromString(data) == pb.SendRequest(frame=wanted)
    assert decode(pb.SendRequest, data).ack_immediately is ack_requested  # type: ignore[union-attr]


@EXAMPLES
@given(uint64, runs(), st.lists(uint64, min_size=4, max_size=4))
def test_encoded_frame_is_a_recv_response(
    sequence: int, groups: list[list[TaskGroup]], firsts: list[int]
) -> None:
    """The generated code reads the same Recv frame, with the sequence of each run's first message."""
    data = encode_frame(sequence, groups, firsts[: len(groups)])
    assert pb.RecvResponse.FromString(data) == pb.RecvResponse(frame=frame_of(sequence, groups, firsts))


@EXAMPLES
@given(uint64, runs(), st.lists(uint64, min_size=4, max_size=4))
def test_times_of_acceptance_travel(sequence: int, groups: list[list[TaskGroup]], times: list[int]) -> None:
    """Each run keeps its time of acceptance; a run without a time gets the first run's time."""
    times = times[: len(groups)]
    frame = frame_in(pb.SendRequest, encode_frame(sequence, groups, accepted_micros=times))
    assert [group.accepted_micros for group in groups_of(frame)] == [time or times[0] for time in times]


@EXAMPLES
@given(uint64, runs(), st.lists(uint64, min_size=4, max_size=4))
def test_decodes_what_the_generated_code_wrote(
    sequence: int, groups: list[list[TaskGroup]], firsts: list[int]
) -> None:
    """A frame written by the generated code is read unchanged."""
    frame = frame_of(sequence, groups, firsts)
    for kind in KINDS:
        assert read_back(frame_in(kind, kind(frame=frame).SerializeToString())) == frame


@EXAMPLES
@given(runs().filter(bool), st.binary(max_size=10))
def test_unknown_fields_do_not_matter(groups: list[list[TaskGroup]], unknown: bytes) -> None:
    """Fields of a later release, in a frame and next to it, do not change the frame."""
    frame = frame_of(5, groups)
    extra = field(1999, unknown)
    body = field(2, frame.SerializeToString() + extra)
    for data in (body + extra, extra + body):
        for kind in KINDS:
            assert read_back(frame_in(kind, data)) == frame


@EXAMPLES
@given(runs().filter(bool), runs().filter(bool))
def test_a_frame_in_two_parts(first: list[list[TaskGroup]], second: list[list[TaskGroup]]) -> None:
    """Protobuf merges a message that occurs twice, and so does the codec."""
    parts = [field(2, frame_of(5, each).SerializeToString()) for each in (first, second)]
    assert read_back(frame_in(pb.SendRequest, b"".join(parts))) == frame_of(5, first + second)


@pytest.mark.parametrize("packed", [True, False])
def test_lengths_in_parts_are_refused(*, packed: bool) -> None:
    """Lengths must be packed, in one piece, as every protobuf library writes them; others are rejected."""
    if packed:
        lengths = field(3, struct.pack("<I", 1)) + field(3, struct.pack("<I", 2))
    else:
        lengths = b"\x1d" + struct.pack("<I", 1) + b"\x1d" + struct.pack("<I", 2)
    group = b"\x08\x01" + lengths + field(4, b"abc")
    data = field(2, b"\x08\x01" + field(2, group))
    assert list(pb.SendRequest.FromString(data).frame.groups[0].lengths) == [1, 2]
    decoded = frame_in(pb.SendRequest, data)
    with pytest.raises(MalformedError, match="a group to task 1"):
        groups_of(decoded)


def read(data: bytes) -> None:
    """Read bytes in every way. Only MalformedError and InvalidTaskError are allowed."""
    for kind in KINDS:
        with contextlib.suppress(MalformedError, InvalidTaskError):
            frame = decode(kind, data)
            if isinstance(frame, OpaqueFrame):
                for group in groups_of(frame):
                    assert sum(group.payload_sizes()) == len(group.data)
                    assert len(group.payloads()) == len(group) > 0
                    assert len(group.encoded_headers() or group) == len(group)
                    assert sum(group.message_sizes()) == group.size_bytes


@EXAMPLES
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda body: field(2, body)))
def test_arbitrary_bytes(data: bytes) -> None:
    """Arbitrary bytes are either a message or a specific error."""
    read(data)


@EXAMPLES
@given(runs().filter(bool), st.data())
def test_mutated_frames(groups: list[list[TaskGroup]], data: st.DataObject) -> None:
    """A frame with bytes changed, removed or inserted is either a frame or a specific error."""
    damaged = bytearray(encode_frame(1, groups))
    for _ in range(data.draw(st.integers(1, 3))):
        # The start, which contains the structure, or any position.
        end = data.draw(st.sampled_from([min(24, len(damaged)), len(damaged)]))
        position = data.draw(st.integers(0, end))
        length = data.draw(st.integers(0, 3))
        damaged[position : position + length] = data.draw(st.binary(max_size=4))
    read(bytes(damaged))


column_parts = st.binary(max_size=16) | st.sampled_from([b"\0\0\0\0", b"\1\0\0\0"])


@EXAMPLES
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    column_parts,
    column_parts,
    st.just(b"") | column_parts,
    st.just(b"") | column_parts,
)
def test_columns_that_do_not_hold_together(
    task: int, source: int | None, lengths: bytes, data: bytes, header_lengths: bytes, header_data: bytes
) -> None:
    """Well-formed protobuf with any ids and columns is either a consistent frame or a specific error."""
    same: dict[str, Any] = {"task": task, "source": source, "data": data, "header_data": header_data}
    frame = OpaqueFrame(sequence=1)
    frame.groups.add(**same, lengths=lengths, header_lengths=header_lengths)
    header_sizes = struct.unpack(
        f"<{len(header_lengths) // 4}I", header_lengths[: len(header_lengths) // 4 * 4]
    )
    valid_headers = not header_lengths or len(header_lengths) == len(lengths)
    sizes = struct.unpack(f"<{len(lengths) // 4}I", lengths[: len(lengths) // 4 * 4])
    valid = task >= 0 and (source is None or source >= 0) and len(lengths) % 4 == 0 < len(lengths)
    if valid and sum(sizes) == len(data) and valid_headers and sum(header_sizes) == len(header_data):
        group = pb.Group(**same, lengths=sizes, header_lengths=header_sizes)
        assert read_back(frame) == pb.Frame(sequence=1, groups=[group])
    else:
        with pytest.raises((MalformedError, InvalidTaskError)):
            groups_of(frame)
    read(field(2, frame.SerializeToString()))


def test_an_unknown_code_is_unspecified() -> None:
    """A refusal with an unknown code of a later release is still a refusal."""
    refusal = pb.Refusal.FromString(pb.Refusal(task=2).SerializeToString() + b"\x20\xe7\x07")
    assert code_name(refusal.code) == "UNSPECIFIED"
