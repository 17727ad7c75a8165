"""The wire contract: its names, and the compatibility of the relay's messages with the full ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor

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


SERVICES = {
    "grpc.health.v1.Health": "Check Watch",
    "tuplewire.v1.Messaging": "Send Recv",
    "tuplewire.v1.Control": "GetStatus GetLoad GetAssignment UpdateAssignment Drain Tap GetDebug SetLogging "
    "ReportProgram CallProgram",
    "tuplewire.v1.Sink": "Begin Stage Discard Check Publish GetProgress",
    "tuplewire.v1.Source": "Poll Read Acknowledge",
}


def test_services() -> None:
    """The services and methods have the names that gRPC probes and clients in other languages call."""
    found = {
        service.full_name: " ".join(method.name for method in service.methods)
        for module in (health_pb2, messaging_pb2, control_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert found == SERVICES
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
