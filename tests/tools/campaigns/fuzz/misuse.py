"""Well-formed protobuf messages that are invalid: out of order, out of range, too many, or corrupted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from campaigns.fuzz.conversation import Conversation
from campaigns.fuzz.garbage import CONTROL, IDS
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from helpers.hostile import RECV, SEND, hello, subscribe

from tuplewire.wire import control_pb2
from tuplewire.wire import messaging_pb2 as pb

TASKS = range(1, 5)
_MANY = 20_000
_HUGE_IDS = 4
"""Few, since the worker remembers every task that a session has sent to, and its rejected messages."""
_MOST_DEPTH = 4

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 7, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 7, 2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2, 65, 2**32, 2**63, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 2, 3, 99, -1),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, -1.0, 1e308, float("nan"), float("inf")),
}
_STRINGS = ("", "x", "fuzz-0", "\0", "é\n" * 10_000, "x" * 300)


def misuse(rng: random.Random) -> Conversation:
    """Return a call that starts with valid requests and is then corrupted."""
    match rng.randrange(10):
        case 0 | 1 | 2 | 3 | 4:
            return _spoilt(rng, SEND, _sending(rng), pb.SendRequest)
        case 5 | 6 | 7:
            return _spoilt(rng, RECV, _receiving(rng), pb.RecvRequest)
        case 8:
            return _huge(rng)
        case _:
            return _controlling(rng)


def _hello(rng: random.Random, sender_id: str = "") -> pb.SendRequest:
    written = hello(
        sender_id=sender_id or f"fuzz-{rng.randrange(IDS)}",
        incarnation=2**64 - 1 if rng.random() < 0.02 else rng.choice([1, 1, 1, 2]),
        ack_mode=rng.choice([pb.ACK_MODE_QUEUED, pb.ACK_MODE_PROCESSED]),
    )
    return pb.SendRequest.FromString(written)


def _frame(rng: random.Random, sequence: int) -> pb.SendRequest:
    groups = []
    for _ in range(rng.randrange(1, 4)):
        payloads = [rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(1, 6))]
        lengths, data = list(map(len, payloads)), b"".join(payloads)
        groups.append(pb.Group(task=rng.choice(TASKS), source=rng.randrange(5), lengths=lengths, data=data))
    return pb.SendRequest(frame=pb.Frame(sequence=sequence, groups=groups))


def _sending(rng: random.Random) -> list[Message]:
    requests: list[Message] = [_hello(rng)]
    requests += [_frame(rng, sequence) for sequence in range(1, rng.randrange(1, 8))]
    extras: list[Callable[[], Message]] = [
        lambda: pb.SendRequest(
            probe=pb.Probe(acknowledged_sequence=rng.randrange(10), changes_only=rng.random() < 0.5)
        ),
        lambda: pb.SendRequest(watch_releases=pb.WatchReleases(tasks=rng.sample(TASKS, 2))),
    ]
    for _ in range(rng.randrange(3)):
        requests.insert(rng.randrange(1, len(requests) + 1), rng.choice(extras)())
    if rng.random() < 0.5:
        requests.append(pb.SendRequest(goodbye=pb.Goodbye()))
    return requests


def _cursor(rng: random.Random, task: int) -> pb.TaskCursor:
    received = rng.randrange(100)
    return pb.TaskCursor(
        task=task,
        acknowledged_sequence=rng.randrange(received + 1),
        received_sequence=received,
        credit_sequence=10**6,
        credit_bytes=10**6,
    )


def _receiving(rng: random.Random) -> list[Message]:
    tasks = rng.sample(TASKS, rng.randrange(1, 4))
    cursors = [_cursor(rng, task) for task in tasks]
    consumer_id = f"fuzz-{rng.randrange(IDS)}"
    written = subscribe(tasks=cursors, consumer_id=consumer_id, incarnation=rng.choice([1, 1, 2]))
    requests: list[Message] = [pb.RecvRequest.FromString(written)]
    requests += [
        pb.RecvRequest(progress=pb.Progress(tasks=[_cursor(rng, task) for task in tasks]))
        for _ in range(rng.randrange(4))
    ]
    if rng.random() < 0.3:
        requests.append(pb.RecvRequest(goodbye=pb.Goodbye()))
    return requests


def _spoilt(rng: random.Random, method: str, requests: list[Message], kind: type[Message]) -> Conversation:
    for _ in range(rng.randrange(3)):
        _disorder(rng, requests, kind)
    for _ in range(rng.randrange(3)):
        if requests:
            _spoil(rng, rng.choice(requests), _MOST_DEPTH)
    written = [request.SerializeToString() for request in requests]
    if written and rng.random() < 0.3:
        place = rng.randrange(len(written))
        written[place] = _mutated(rng, written[place])
    return Conversation(method, tuple(written), broken_off=rng.random() < 0.2)


def _disorder(rng: random.Random, requests: list[Message], kind: type[Message]) -> None:
    """Remove, repeat or move a request, or insert an unexpected one."""
    place = rng.randrange(len(requests) + 1)
    match rng.randrange(4) if requests else 3:
        case 0:
            del requests[place - 1]
        case 1:
            requests.insert(place, requests[rng.randrange(len(requests))])
        case 2:
            requests.insert(place - 1, requests.pop(rng.randrange(len(requests))))
        case _:
            strange = kind()
            _spoil(rng, strange, _MOST_DEPTH)
            requests.insert(place, strange)


def _spoil(rng: random.Random, message: Message, depth: int) -> None:
    """Set one field, here or in a nested message, to an extreme value, or to many values."""
    field: Any = rng.choice(message.DESCRIPTOR.fields)
    value: Any = getattr(message, field.name)
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry:
            key, content = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(rng.choice([1, 2, 300])):
                value[_extreme(rng, key)] = _extreme(rng, content)
        elif field.is_repeated:
            _spoil_list(rng, value, depth)
        elif rng.random() < 0.2:
            message.ClearField(field.name)
        else:
            value.SetInParent()
            if depth and value.DESCRIPTOR.fields:
                _spoil(rng, value, depth - 1)
    elif field.is_repeated:
        count = rng.choice([0, 1, 2, 300])
        del value[:]
        value.extend(_extreme(rng, field) for _ in range(count))
    else:
        setattr(message, field.name, _extreme(rng, field))


def _spoil_list(rng: random.Random, messages: Any, depth: int) -> None:
    match rng.randrange(4):
        case 0:
            del messages[:]
        case 1 if messages:
            messages.extend([messages[0]] * rng.choice([1, 10, 1000]))
        case 2 if messages and depth:
            _spoil(rng, rng.choice(messages), depth - 1)
        case _:
            added = messages.add()
            if depth:
                _spoil(rng, added, depth - 1)


def _extreme(rng: random.Random, field: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice([0, 1, 100, 10_000]))
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(_STRINGS)
    return rng.choice(_INTEGERS[field.cpp_type])


def _mutated(rng: random.Random, data: bytes) -> bytes:
    """Flip, cut, insert or repeat bytes."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0 if out:
                out[place % len(out)] = rng.randrange(256)
            case 1:
                del out[place:]
            case 2:
                out[place:place] = rng.randbytes(rng.randrange(8))
            case _:
                out += out[: rng.randrange(len(out) + 1)]
    return bytes(out)


def _huge(rng: random.Random) -> Conversation:
    """Return a stream with a request that has many parts, or large ones."""
    many = rng.randrange(1, _MANY)
    sender_id = f"fuzz-huge-{rng.randrange(_HUGE_IDS)}"
    task = rng.choice([1, 99, 2**31 - 1])
    group = pb.Group
    groups: list[Callable[[], list[pb.Group]]] = [
        lambda: [group(task=task, lengths=[0])] * many,
        lambda: [group(task=1000 + each, lengths=[0]) for each in range(many)],
        lambda: [group(task=task, lengths=[0] * many)],
        lambda: [group(task=task, lengths=[100 * many], data=bytes(100 * many))],
    ]
    kind = rng.randrange(len(groups) + 1)
    if kind == len(groups):
        huge = pb.SendRequest(watch_releases=pb.WatchReleases(tasks=range(many)))
    else:
        huge = pb.SendRequest(frame=pb.Frame(sequence=1, groups=groups[kind]()))
    if rng.random() < 0.8:
        return Conversation(
            SEND,
            (_hello(rng, sender_id).SerializeToString(), huge.SerializeToString()),
            broken_off=rng.random() < 0.2,
        )
    cursors = [pb.TaskCursor(task=1000 + each) for each in range(many)]
    return Conversation(RECV, (subscribe(tasks=cursors, consumer_id="fuzz-huge", incarnation=0),))


def _controlling(rng: random.Random) -> Conversation:
    """Return a call to Control that the worker must reject, or answer without any effect."""
    if rng.random() < 0.3:
        tasks = [
            int(rng.choice(_INTEGERS[FieldDescriptor.CPPTYPE_INT32]))
            for _ in range(rng.choice([1, 10, _MANY]))
        ]
        return Conversation(
            f"{CONTROL}GetLoad", (control_pb2.GetLoadRequest(tasks=tasks).SerializeToString(),), unary=True
        )
    worker = control_pb2.AssignedWorker(worker_id="w", address="127.0.0.1:1", tasks=[1, 2])
    request = control_pb2.UpdateAssignmentRequest(
        assignment=control_pb2.Assignment(version=5, topology="other", workers=[worker])
    )
    for _ in range(rng.randrange(1, 5)):
        _spoil(rng, request, _MOST_DEPTH)
    return Conversation(f"{CONTROL}UpdateAssignment", (request.SerializeToString(),), unary=True)
