"""The wire contract: its form, and the compatibility of the relay's messages with the full ones.

`make proto-check` checks that the generated code is up to date.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from helpers.tools import require_tool
from hypothesis import given
from hypothesis import strategies as st

from tuplewire.v1 import control_pb2 as control
from tuplewire.v1 import control_pb2_grpc as control_stubs
from tuplewire.v1 import messaging_pb2 as messaging
from tuplewire.v1 import messaging_pb2_grpc as messaging_stubs
from tuplewire.v1 import opaque_pb2 as opaque
from tuplewire.wire import (
    control_pb2,
    control_pb2_grpc,
    health_pb2,
    messaging_pb2,
    messaging_pb2_grpc,
    opaque_pb2,
)

PROTO = Path(__file__).parents[2] / "proto"


@pytest.mark.parametrize("command", [["lint"], ["format", "--diff", "--exit-code"]], ids=["lint", "format"])
def test_buf(command: list[str]) -> None:
    """The contract passes the linter, is commented throughout, and is formatted."""
    buf = require_tool("buf", "make install")  # the version next to the interpreter is pinned
    run = subprocess.run([buf, *command], cwd=PROTO, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_standard_health() -> None:
    """The health service has the names that every gRPC probe requests."""
    service = health_pb2.DESCRIPTOR.services_by_name["Health"]
    assert service.full_name == "grpc.health.v1.Health"
    assert [method.name for method in service.methods] == ["Check", "Watch"]
    states = health_pb2.HealthCheckResponse.ServingStatus.items()
    assert dict(states) == {"UNKNOWN": 0, "SERVING": 1, "NOT_SERVING": 2, "SERVICE_UNKNOWN": 3}


def test_health_is_declared_once() -> None:
    """A program may use another copy of the standard service; Tuplewire does not prevent it."""
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileContainingSymbol("grpc.health.v1.Health")
    sources = "".join(map(Path.read_text, PROTO.rglob("*.proto")))
    assert set(re.findall(r"^package (.+);", sources, re.MULTILINE)) == {"tuplewire.v1"}


def test_the_code_has_the_name_of_the_contract() -> None:
    """The generated code is importable as tuplewire.v1, and Tuplewire itself uses the same classes."""
    assert messaging.Hello is messaging_pb2.Hello
    assert control.Ledger is control_pb2.Ledger
    assert opaque.OpaqueFrame is opaque_pb2.OpaqueFrame
    assert messaging_stubs.MessagingStub is messaging_pb2_grpc.MessagingStub
    assert control_stubs.ControlStub is control_pb2_grpc.ControlStub


def test_services() -> None:
    """The services and methods have the names that clients in other languages call."""
    messaging = messaging_pb2.DESCRIPTOR.services_by_name["Messaging"]
    assert messaging.full_name == "tuplewire.v1.Messaging"
    assert [method.name for method in messaging.methods] == ["Send", "Recv"]
    control = control_pb2.DESCRIPTOR.services_by_name["Control"]
    assert [method.name for method in control.methods] == [
        "GetStatus",
        "GetLoad",
        "GetAssignment",
        "UpdateAssignment",
        "Drain",
        "Tap",
        "GetDebug",
        "SetLogging",
        "ReportProgram",
        "CallProgram",
    ]
    sinks = control_pb2.DESCRIPTOR.services_by_name["Sinks"]
    assert [method.name for method in sinks.methods] == [
        "Begin",
        "Stage",
        "Discard",
        "Check",
        "Publish",
        "Progress",
    ]
    source = control_pb2.DESCRIPTOR.services_by_name["Source"]
    assert [method.name for method in source.methods] == ["Poll", "Read", "Acknowledge"]


def shape(message: Any) -> dict[str, tuple[object, ...]]:
    """Return the number, repetition, presence and type of each field."""
    return {
        field.name: (
            field.number,
            field.is_repeated,
            field.has_presence,
            field.type,
            field.message_type and field.message_type.name.removeprefix("Opaque"),
        )
        for field in message.fields
    }


def test_opaque_fields() -> None:
    """The relay's messages have the same fields and numbers; only the columns of lengths are bytes."""
    seen, opaque = shape(messaging_pb2.Group.DESCRIPTOR), shape(opaque_pb2.OpaqueGroup.DESCRIPTOR)
    for name in ("lengths", "header_lengths"):
        lengths, blind = seen.pop(name), opaque.pop(name)
        assert (lengths[0], lengths[3]) == (blind[0], FieldDescriptor.TYPE_FIXED32)
        assert blind[3] == FieldDescriptor.TYPE_BYTES
    assert opaque == seen
    assert shape(opaque_pb2.OpaqueFrame.DESCRIPTOR) == shape(messaging_pb2.Frame.DESCRIPTOR)


groups = st.builds(
    messaging_pb2.Group,
    task=st.integers(0, 2**31 - 1),
    source=st.none() | st.integers(0, 2**31 - 1),
    lengths=st.lists(st.integers(0, 2**32 - 1), max_size=5),
    data=st.binary(max_size=20),
    first_sequence=st.integers(0, 2**64 - 1),
    redelivered=st.booleans(),
    header_lengths=st.lists(st.integers(0, 2**32 - 1), max_size=5),
    header_data=st.binary(max_size=20),
)
frames = st.builds(
    messaging_pb2.Frame, sequence=st.integers(0, 2**64 - 1), groups=st.lists(groups, max_size=4)
)


@given(frames)
def test_opaque_reads_the_same(frame: messaging_pb2.Frame) -> None:
    """The relay's view of a frame has the same values, and serializes to the same bytes."""
    data = frame.SerializeToString()
    opaque = opaque_pb2.OpaqueFrame.FromString(data)
    assert opaque.sequence == frame.sequence
    assert len(opaque.groups) == len(frame.groups)
    for blind, group in zip(opaque.groups, frame.groups, strict=True):
        assert blind.lengths == b"".join(length.to_bytes(4, "little") for length in group.lengths)
        assert blind.header_lengths == b"".join(
            length.to_bytes(4, "little") for length in group.header_lengths
        )
        assert (blind.task, blind.data, blind.header_data, blind.first_sequence, blind.redelivered) == (
            group.task,
            group.data,
            group.header_data,
            group.first_sequence,
            group.redelivered,
        )
        assert (blind.HasField("source"), blind.source) == (group.HasField("source"), group.source)
    assert opaque.SerializeToString() == data
    assert messaging_pb2.Frame.FromString(opaque.SerializeToString()) == frame
