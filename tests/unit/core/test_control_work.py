"""Control calls: the work in one turn of the event loop grows only with the names in a request."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from helpers.queues import Program
from prometheus_client import CollectorRegistry

from tuplewire.errors import MessageError, RefusedError
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.config.stop import Stop
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.control.control_messages import MAX_NAMES
from tuplewire_service.control.debugging import DebugBundles
from tuplewire_service.control.log_output import LogOutput
from tuplewire_service.control.spark_servicers import SinkServicer, SourceServicer
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.process.worker_runtime import WorkerRuntime
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

NAMES = 3000
GROUPS = 3000
TASKS = range(50)
CALLS_PER_NAME = 60
"""Allowed function calls per name in one turn; work for each pair of names would need thousands."""


@pytest.fixture(scope="module")
def plane() -> Iterator[WorkerRuntime]:
    """Create a worker that does not listen; its task 0 holds many groups of one message."""
    config = WorkerConfig(worker_id="w", topology="t")
    log = LogOutput("info", "text")
    plane = WorkerRuntime(config, Stop(), DebugBundles(config, log, CollectorRegistry()))
    assignment = Assignment(1, "t", (AssignedWorker("w", "127.0.0.1:1", tuple(TASKS)),))
    plane.loop.call(lambda: plane.worker.update_assignment(assignment))
    groups = [TaskGroup.of(0, [b"x"], source) for source in range(GROUPS)]
    plane.loop.call(lambda: plane.worker.router.recv(ReceivedBatch.for_callback(groups, Program())))
    yield plane
    plane.close()


class Caller:
    """The call context of a program on this machine."""

    def peer(self) -> str:
        return "unix:"

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def add_done_callback(self, callback: object) -> None:
        del callback

    def auth_context(self) -> dict[str, Any]:
        return {}


class Work:
    """Counts the function calls in each turn of the event loop; every callback is one turn."""

    def __init__(self) -> None:
        self.most = self.now = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "_run" and "asyncio" in frame.f_code.co_filename:
            self.now = 0
        elif event in {"call", "c_call"}:
            self.now += 1
            self.most = max(self.most, self.now)


def filled(message: Message, rng: random.Random, *, distinct: bool, names: int) -> None:
    """Fill every field of a request, and each repeated field with many names."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            repeated = getattr(message, field.name)
            for number in range(names):
                if field.message_type is None:
                    repeated.append(_value(field, rng, number if distinct else 0))
                else:
                    filled(repeated.add(), rng, distinct=distinct, names=0)
        elif field.message_type is None and field.name not in {"frame", "topology", "expected_worker_id"}:
            setattr(message, field.name, _value(field, rng, rng.randrange(2)))


def _value(field: Any, rng: random.Random, number: int) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return "x" * rng.randrange(1, 50) if field.type == FieldDescriptor.TYPE_STRING else b"x"
        case FieldDescriptor.CPPTYPE_BOOL:
            return bool(number % 2)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return 1.0
        case FieldDescriptor.CPPTYPE_ENUM:
            return 1
        case _:
            return number


UNARY = [
    method
    for service in ("Control", "Sink", "Source")
    for method in pb.DESCRIPTOR.services_by_name[service].methods
    if not method.server_streaming and method.name != "Drain"
]


def called(plane: WorkerRuntime, method: str) -> Any:
    """Return the service method with this name."""
    worker, admit = plane.worker, plane.security.admit
    services = plane.control, SinkServicer(worker, admit), SourceServicer(worker, admit)
    return next(getattr(each, method) for each in services if method in vars(type(each)))


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("method", UNARY, ids=lambda method: method.name)
def test_work_is_bounded(plane: WorkerRuntime, method: MethodDescriptor, distinct: bool) -> None:  # noqa: FBT001
    """Repeated names count once, and the work is not multiplied by the length of the queues."""
    rng = random.Random(7)
    for names in (NAMES, 0):
        request = getattr(pb, method.input_type.name)()
        filled(request, rng, distinct=distinct, names=names)
        for field in request.DESCRIPTOR.fields:
            if field.name == "topology" and field.message_type is None:
                request.topology = "t"
        work = Work()

        async def measured(request: Message = request, work: Work = work) -> None:
            sys.setprofile(work)
            try:
                await called(plane, method.name)(request, Caller())
            except (RefusedError, MessageError):
                pass
            finally:
                sys.setprofile(None)

        plane.loop.run(measured(), 60)
        assert work.most < CALLS_PER_NAME * (names + 200), f"{work.most} calls in one turn"


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("GetLoad", pb.GetLoadRequest(tasks=range(MAX_NAMES + 1))),
        ("Poll", pb.PollRequest(worker_incarnations=range(MAX_NAMES + 1))),
        ("Poll", pb.PollRequest(tasks=[pb.PolledTask()] * (MAX_NAMES + 1))),
        ("Acknowledge", pb.AcknowledgeRequest(tasks=[pb.AcknowledgedTask()] * (MAX_NAMES + 1))),
    ],
)
def test_too_many_names_are_refused(plane: WorkerRuntime, name: str, request_: Message) -> None:
    """The error contains the allowed number of names."""
    with pytest.raises(MessageError, match="100000 are allowed: split it"):
        plane.loop.run(called(plane, name)(request_, Caller()), 60)
