"""Encoding and decoding of frames, by group and never by message.

encode_frame() joins the columns by hand with one copy; the protobuf library, which encodes the other fields,
would make four. The result is an ordinary `SendRequest{frame}` or `RecvResponse{frame}`, which both have the
frame as field 2. Tests compare it with the generated code. The protobuf library decodes frames, with the
schema OpaqueFrame.

Used by the streams of clients and workers, staged rows of sinks, and the local transport. Owns no state.
Thread-safe. Design: docs/design/sessions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from google.protobuf.message import DecodeError

from tuplewire.errors import MalformedError
from tuplewire.session.credit import MAX_TASKS
from tuplewire.values.columns import varint
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup, flow_id_of, split_flow
from tuplewire.wire.messaging_pb2 import RecvResponse, SendRequest
from tuplewire.wire.opaque_pb2 import OpaqueFrame, OpaqueGroup, OpaqueMessage

_Message = TypeVar("_Message", SendRequest, RecvResponse)

# Protobuf tags: field number << 3 | wire type.
_FRAME = b"\x12"
_GROUP = b"\x12"
_COLUMNS = (
    (b"\x1a", attrgetter("lengths")),
    (b"\x22", attrgetter("data")),
    (b"\x52", attrgetter("header_lengths")),
    (b"\x5a", attrgetter("header_data")),
)


def encode_frame(
    sequence: int,
    runs: Sequence[Sequence[TaskGroup]],
    first_sequences: Sequence[int] = (),
    *,
    accepted_micros: Sequence[int] = (),
    assignment_version: int = 0,
    closed_flows: Sequence[int] = (),
    ack_immediately: bool = False,
) -> bytes:
    """Return an encoded SendRequest or RecvResponse with one frame.

    Args:
        runs: Lists of groups that are written as one group. The groups of a run differ only in their columns.
        first_sequences: For Recv, the sequence of each run's first message. For Send, groups contain it.
        accepted_micros: The time of acceptance of each run's first message.
        assignment_version, closed_flows: For Send.
    """
    frame_accepted = accepted_micros[0] if accepted_micros else 0
    frame = OpaqueFrame(
        sequence=sequence,
        assignment_version=assignment_version,
        accepted_unix_micros=frame_accepted,
        ack_immediately=ack_immediately,
    )
    for flow_id in closed_flows:
        task, flow_path = split_flow(flow_id)
        frame.closed_flows.add(task=task, flow_path=flow_path)
    parts = [b"", frame.SerializeToString()]
    # The first run's time is a field of the frame. Other runs have a time only if it differs.
    for index, run in enumerate(runs):
        group = run[0]
        micros = accepted_micros[index] if accepted_micros else 0
        head = OpaqueGroup(
            task=group.task,
            source=group.source,
            first_sequence=first_sequences[index] if first_sequences else group.entry_sequence,
            redelivered=group.redelivered,
            path=group.path,
            accepted_unix_micros=micros if micros != frame_accepted else 0,
            retained_upstream=group.retained_upstream,
        ).SerializeToString()
        columns = [head]
        for tag, column in _COLUMNS if group.header_lengths else _COLUMNS[:2]:
            pieces = list(map(column, run))
            columns += (tag + varint(sum(map(len, pieces))), *pieces)
        parts += (_GROUP + varint(sum(map(len, columns))), *columns)
    parts[0] = _FRAME + varint(sum(map(len, parts)))
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


def closed_flows_of(frame: OpaqueFrame) -> Sequence[int]:
    """Return the flows that a frame closes. Raise MalformedError for more flows than a session may have."""
    if not frame.closed_flows:  # nearly always
        return ()
    if (count := len(frame.closed_flows)) > MAX_TASKS:
        raise MalformedError(f"a frame closes {count} flows; a session has at most {MAX_TASKS}")
    return [flow_id_of(each.task, each.flow_path) for each in frame.closed_flows]


def groups_of(frame: OpaqueFrame) -> list[TaskGroup]:
    """Return the checked groups of a frame. Raise MalformedError or InvalidTaskError if one is invalid."""
    if (count := len(frame.groups)) > MAX_FRAME_GROUPS:
        raise MalformedError(
            f"a frame has {count} groups, and may have {MAX_FRAME_GROUPS}: put the others into more frames"
        )
    accepted = frame.accepted_unix_micros
    groups = []
    for each in frame.groups:
        group = TaskGroup(
            each.task,
            each.source if each.HasField("source") else None,
            each.lengths,
            each.data,
            redelivered=each.redelivered,
            path=each.path,
            entry_sequence=each.first_sequence,
            accepted_micros=each.accepted_unix_micros or accepted,
            retained_upstream=each.retained_upstream,
            header_lengths=each.header_lengths,
            header_data=each.header_data,
        )
        groups.append(group.validate())
    return groups
