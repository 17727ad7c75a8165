"""Encoding and decoding of frames, by group and never by message.

encode_frame() joins the columns by hand with one copy; the protobuf library would make four. The result is an
ordinary `SendRequest{frame}` or `RecvResponse{frame}`, which both have the frame as field 2. Tests compare it
with the generated code. The protobuf library decodes frames, with the schema OpaqueFrame.

Used by the streams of clients and workers, staged rows of sinks, and the local transport. Owns no state.
Thread-safe. Design: docs/design/sessions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError

from tuplewire.errors import MalformedError
from tuplewire.session.credit import MAX_TASKS
from tuplewire.values.columns import varint
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup, flow_of, task_and_forwarded
from tuplewire.wire.messaging_pb2 import Flow, RecvResponse, SendRequest
from tuplewire.wire.opaque_pb2 import OpaqueFrame, OpaqueMessage

_Message = TypeVar("_Message", SendRequest, RecvResponse)

# Protobuf tags: field number << 3 | wire type.
_FRAME = b"\x12"
_SEQUENCE = b"\x08"
_GROUP = b"\x12"
_ASSIGNMENT_VERSION = b"\x18"
_TASK = b"\x08"
_SOURCE = b"\x10"
_LENGTHS = b"\x1a"
_DATA = b"\x22"
_FIRST_SEQUENCE = b"\x28"
_REDELIVERED = b"\x30\x01"
_FORWARDED = b"\x39"
_ACCEPTED = b"\x41"
_RETAINED_UPSTREAM = b"\x48\x01"
_HEADER_LENGTHS = b"\x52"
_HEADER_DATA = b"\x5a"
_FRAME_ACCEPTED = b"\x21"
_CLOSED = b"\x2a"
_ACK_IMMEDIATELY = b"\x30\x01"


def encode_frame(
    sequence: int,
    runs: Sequence[Sequence[TaskGroup]],
    first_sequences: Sequence[int] = (),
    *,
    accepted_micros: Sequence[int] = (),
    assignment_version: int = 0,
    closed: Sequence[int] = (),
    ack_immediately: bool = False,
) -> bytes:
    """Return an encoded SendRequest or RecvResponse with one frame.

    Args:
        sequence, ack_immediately: Fields of Frame.
        runs: Lists of groups that are written as one group. The groups of a run differ only in their columns.
        first_sequences: For Recv, the sequence of each run's first message. For Send, groups contain it.
        accepted_micros: The time of acceptance of each run's first message.
        assignment_version, closed: Fields of Frame, for Send; `closed` has flows.
    """
    parts: list[bytes] = [_SEQUENCE + varint(sequence)]
    if assignment_version:
        parts.append(_ASSIGNMENT_VERSION + varint(assignment_version))
    frame_accepted = accepted_micros[0] if accepted_micros else 0
    if ack_immediately:
        parts.append(_ACK_IMMEDIATELY)
    if frame_accepted:
        parts.append(_FRAME_ACCEPTED + frame_accepted.to_bytes(8, "little"))
    for flow in closed:
        task, forwarded = task_and_forwarded(flow)
        told = Flow(task=task, forwarded=forwarded).SerializeToString()
        parts.append(_CLOSED + varint(len(told)) + told)
    # The first run's time is a field of the frame. Other runs have a time only if it differs.
    for index, run in enumerate(runs):
        group = run[0]
        lengths = [piece.lengths for piece in run]
        data = [piece.data for piece in run]
        lengths_size, data_size = sum(map(len, lengths)), sum(map(len, data))
        head = _TASK + varint(group.task)
        if group.source is not None:
            head += _SOURCE + varint(group.source)
        first = first_sequences[index] if first_sequences else group.entry_sequence
        if first:
            head += _FIRST_SEQUENCE + varint(first)
        if group.redelivered:
            head += _REDELIVERED
        if group.forwarded:
            head += _FORWARDED + group.forwarded.to_bytes(8, "little")
        if accepted_micros and accepted_micros[index] != frame_accepted:
            head += _ACCEPTED + accepted_micros[index].to_bytes(8, "little")
        if group.retained_upstream:
            head += _RETAINED_UPSTREAM
        head += _LENGTHS + varint(lengths_size)
        middle = _DATA + varint(data_size)
        size = len(head) + lengths_size + len(middle) + data_size
        if not group.header_lengths:
            parts += (_GROUP + varint(size) + head, *lengths, middle, *data)
            continue
        headers = [piece.header_data for piece in run]
        headers_size = sum(map(len, headers))
        header_lengths = _HEADER_LENGTHS + varint(lengths_size)
        end = _HEADER_DATA + varint(headers_size)
        size += len(header_lengths) + lengths_size + len(end) + headers_size
        parts += (_GROUP + varint(size) + head, *lengths, middle, *data, header_lengths)
        parts += (*(piece.header_lengths for piece in run), end, *headers)
    parts.insert(0, _FRAME + varint(sum(map(len, parts))))
    return b"".join(parts)


def decode(kind: type[_Message], data: bytes) -> _Message | OpaqueFrame:
    """Decode a SendRequest or RecvResponse. With a frame, return an OpaqueFrame. Raises MalformedError."""
    try:
        opaque = OpaqueMessage.FromString(data)
        return opaque.frame if opaque.HasField("frame") else kind.FromString(data)
    except DecodeError as error:
        raise MalformedError(f"{len(data)} bytes are not a {kind.__name__}: {error}") from error


def plain_frame(groups: Iterable[TaskGroup]) -> bytes:
    """Return an encoded Frame with the fields that programs set, for groups sent outside a session."""
    data = encode_frame(0, [[group] for group in groups])
    start = next(index for index in range(1, len(data)) if data[index] < 0x80)  # the end of the frame's size
    return data[start + 1 :]


def closed_flows_of(frame: OpaqueFrame) -> list[int]:
    """Return the flows that a frame closes. Raise MalformedError for more flows than a session may have."""
    if (count := len(frame.closed)) > MAX_TASKS:
        raise MalformedError(f"a frame closes {count} flows; a session has at most {MAX_TASKS}")
    return [flow_of(each.task, each.forwarded) for each in frame.closed]


def groups_of(frame: OpaqueFrame) -> list[TaskGroup]:
    """Return the checked groups of a frame. Raise MalformedError or InvalidTaskError if one is invalid."""
    if (count := len(frame.groups)) > MAX_FRAME_GROUPS:
        raise MalformedError(
            f"a frame has {count} groups, and may have {MAX_FRAME_GROUPS}: put the others into more frames"
        )
    accepted = frame.accepted_unix_micros
    return [
        TaskGroup(
            group.task,
            group.source if group.HasField("source") else None,
            group.lengths,
            group.data,
            redelivered=group.redelivered,
            forwarded=group.forwarded,
            entry_sequence=group.first_sequence,
            accepted_micros=group.accepted_unix_micros or accepted,
            retained_upstream=group.retained_upstream,
            header_lengths=group.header_lengths,
            header_data=group.header_data,
        ).checked()
        for group in frame.groups
    ]
