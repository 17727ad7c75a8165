"""Bytes that break the protocol: each case gets a named status, and other clients are not affected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest
from helpers.cursors import cursor_of
from helpers.hostile import (
    OPTIONS,
    RECV,
    SEND,
    TARGET_TASK,
    Answer,
    ask,
    frame,
    hello,
    lengths,
    raw_frame,
    subscribe,
    talk,
    talk_over,
)
from helpers.http2 import OPENING, call_headers, connected
from helpers.topology import TOPOLOGY, collect, numbered, numbers, queued
from helpers.traffic import client_of, deliver, take

from tuplewire import Client
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.session.credit import MAX_TASKS
from tuplewire.values.columns import varint
from tuplewire.values.group import MAX_FRAME_GROUPS
from tuplewire.wire import control_pb2
from tuplewire.wire import messaging_pb2 as pb

CONTROL = "/tuplewire.v1.Control/"
HEALTHY_TASK = 0
LIMIT = 1 << 20
MALFORMED = (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED")


@pytest.fixture(autouse=True)
def _well_behaved_session_is_unaffected(endpoint: Endpoint) -> Iterator[None]:
    """Keep a session open during every test: it works without a reconnect, loss or reordering."""
    with client_of(endpoint.address) as client, client.recv([HEALTHY_TASK], timeout=10) as subscription:
        client.send(numbered(HEALTHY_TASK, range(100)))
        assert numbers(collect(subscription, 100)) == list(range(100))
        yield
        client.send(numbered(HEALTHY_TASK, range(100, 200)))
        assert numbers(collect(subscription, 100)) == list(range(100, 200))
        client.flush(10)
        assert client.ledger().acknowledged == 200
        assert client._sender is not None
        assert client._sender.counts.connections == 1


def singles(groups: int, sequence: int = 1) -> bytes:
    """Return a frame of `groups` groups with one message each."""
    group = pb.Group(task=TARGET_TASK, lengths=[1], data=b"x")
    return pb.SendRequest(frame=pb.Frame(sequence=sequence, groups=[group] * groups)).SerializeToString()


def closing(flows: int, sequence: int = 1) -> bytes:
    """Return a frame that closes `flows` flows and has no messages."""
    closed = [pb.Flow(task=TARGET_TASK)] * flows
    return pb.SendRequest(frame=pb.Frame(sequence=sequence, closed_flows=closed)).SerializeToString()


MALFORMED_SENDS: dict[str, Callable[[], list[bytes]]] = {
    "a frame before the hello": lambda: [frame()],
    "a goodbye before the hello": lambda: [pb.SendRequest(goodbye=pb.Goodbye()).SerializeToString()],
    "an empty first request": lambda: [b""],
    "garbage first": lambda: [b"\xff\xfe garbage"],
    "a second hello": lambda: [hello(), hello()],
    "an empty request": lambda: [hello(), b""],
    "a request of an unknown kind": lambda: [hello(), b"\x7a\x01x"],
    "garbage": lambda: [hello(), b"\xff" * 100],
    "garbage that begins like a frame": lambda: [hello(), b"\x12\x05\xff\xff\xff\xff\xff"],
    "a truncated frame": lambda: [hello(), frame(payloads=(b"x" * 50,))[:-20]],
    "a frame with bytes after it": lambda: [hello(), frame() + b"\xff\xff"],
    "more groups than a frame may have": lambda: [
        hello(),
        singles(MAX_FRAME_GROUPS),
        singles(MAX_FRAME_GROUPS + 1, 2),
    ],
    "more flows closed than a session has": lambda: [hello(), closing(MAX_TASKS), closing(MAX_TASKS + 1, 2)],
    "lengths that say more than there is": lambda: [hello(), raw_frame(lengths=lengths(5, 5), data=b"12345")],
    "a negative task": lambda: [hello(), raw_frame(task=-1, lengths=lengths(1), data=b"x")],
    "an unknown ack mode": lambda: [hello(ack_mode=77)],
    "no sender id": lambda: [hello(sender_id="")],
    "a sender id without end": lambda: [hello(sender_id="x" * LIMIT)],
}
REFUSED_SENDS: dict[str, tuple[Callable[[], list[bytes]], str]] = {
    "a sequence gap": (lambda: [hello(), frame(1), frame(3)], "SEQUENCE_GAP"),
    "the highest sequence": (lambda: [hello(), frame(2**64 - 1)], "SEQUENCE_GAP"),
    "more messages than granted": (
        lambda: [hello(), frame(payloads=(b"",) * 140_000, task=2)],
        "CREDIT_EXCEEDED",
    ),
    "more bytes than granted": (
        lambda: [hello(), *(frame(number, (bytes(LIMIT),) * 2, task=3) for number in range(1, 9))],
        "CREDIT_EXCEEDED",
    ),
    "an oversize message": (lambda: [hello(), frame(payloads=(bytes(LIMIT + 1),))], "MESSAGE_TOO_LARGE"),
    "another protocol version": (lambda: [hello(protocol_version=99)], "PROTOCOL_VERSION"),
    "another topology": (lambda: [hello(topology="other")], "WRONG_TOPOLOGY"),
    "a topology without end": (lambda: [hello(topology="é\n" * LIMIT)], "WRONG_TOPOLOGY"),
}
MALFORMED_RECEIVES: dict[str, Callable[[], list[bytes]]] = {
    "progress before the subscribe": lambda: [pb.RecvRequest(progress=pb.Progress()).SerializeToString()],
    "an empty first request": lambda: [b""],
    "garbage first": lambda: [b"\xff\xfe garbage"],
    "no tasks": lambda: [subscribe()],
    "a negative task": lambda: [subscribe(-1)],
    "a task twice": lambda: [subscribe(TARGET_TASK, TARGET_TASK)],
    "a second subscribe": lambda: [subscribe(TARGET_TASK), subscribe(TARGET_TASK)],
    "an empty request": lambda: [subscribe(TARGET_TASK), b""],
    "garbage": lambda: [subscribe(TARGET_TASK), b"\xff" * 100],
    "progress of a negative task": lambda: [
        subscribe(TARGET_TASK),
        pb.RecvRequest(progress=pb.Progress(tasks=[pb.TaskCursor(task=-5)])).SerializeToString(),
    ],
    "no consumer id": lambda: [subscribe(TARGET_TASK, consumer_id="")],
    "a consumer id without end": lambda: [subscribe(TARGET_TASK, consumer_id="x" * LIMIT)],
}
REFUSED_RECEIVES: dict[str, tuple[Callable[[], list[bytes]], str]] = {
    "an unknown task": (lambda: [subscribe(TARGET_TASK, 999)], "UNKNOWN_TASK"),
    "another protocol version": (lambda: [subscribe(TARGET_TASK, protocol_version=0)], "PROTOCOL_VERSION"),
    "another topology": (lambda: [subscribe(TARGET_TASK, topology="x" * LIMIT)], "WRONG_TOPOLOGY"),
}


@pytest.mark.parametrize(
    ("method", "case"),
    [*((SEND, case) for case in MALFORMED_SENDS), *((RECV, case) for case in MALFORMED_RECEIVES)],
)
def test_a_malformed_stream_is_refused(endpoint: Endpoint, method: str, case: str) -> None:
    """A stream with a request that is malformed or out of place ends with a status that reports it."""
    answer = talk(endpoint, method, (MALFORMED_SENDS if method == SEND else MALFORMED_RECEIVES)[case]())
    assert (answer.status, answer.error) == MALFORMED, answer
    assert answer.details


@pytest.mark.parametrize(
    ("method", "case"),
    [*((SEND, case) for case in REFUSED_SENDS), *((RECV, case) for case in REFUSED_RECEIVES)],
)
def test_a_stream_is_refused_by_name(endpoint: Endpoint, method: str, case: str) -> None:
    """A stream that breaks the protocol ends with a status that names the problem."""
    requests, error = (REFUSED_SENDS if method == SEND else REFUSED_RECEIVES)[case]
    answer = talk(endpoint, method, requests())
    assert (answer.status, answer.error) == (grpc.StatusCode.FAILED_PRECONDITION, error), answer
    assert answer.details


def test_a_request_over_the_limit_of_grpc_is_refused(endpoint: Endpoint) -> None:
    """GRPC itself refuses a larger request than a worker accepts."""
    answer = talk(endpoint, SEND, [hello(), frame(payloads=(bytes(10 * LIMIT),))])
    assert (answer.status, answer.error) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "")
    assert answer.details


def test_a_welcomed_sender_is_told_by_an_answer_too(endpoint: Endpoint) -> None:
    """The last response repeats the status, for senders that miss the status while they are writing."""
    answer = talk(endpoint, SEND, [hello(), frame(7)])
    welcome, last = map(pb.SendResponse.FromString, answer.responses)
    assert welcome.HasField("welcome")
    assert (last.ended.code, last.ended.detail) == (pb.ERROR_CODE_SEQUENCE_GAP, answer.details)


@pytest.mark.parametrize(
    "method",
    [CONTROL + each for each in ("GetStatus", "GetLoad", "GetAssignment", "UpdateAssignment", "Drain")]
    + ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"],
)
def test_what_is_no_request_is_refused(endpoint: Endpoint, method: str) -> None:
    """A call of Control or Health with bytes that are not protobuf is refused by name."""
    answer = talk(endpoint, method, [b"\xff\xfe garbage"])
    assert (answer.status, answer.error) == MALFORMED, answer
    assert "not a request" in answer.details


def test_method_that_is_no_text(endpoint: Endpoint) -> None:
    """A method's name that is not UTF-8 affects no other clients. It ends servers of grpcio 1.84 and 1.85."""
    for _ in range(5):
        with connected(endpoint.address) as connection:
            connection.sendall(OPENING + call_headers(1, b"/\xff"))
            while (said := connection.recv(4096)) and b"grpc-status" not in said:
                pass
        with Client(endpoint.address, topology=TOPOLOGY) as client:
            client.send(numbered(7, range(10)))
            client.flush(30)
        take(endpoint, 7, 10)


def test_long_words_do_not_hide_the_name(endpoint: Endpoint) -> None:
    """A Control refusal that would quote 100 KB keeps its name; gRPC drops metadata of that size."""
    broken = control_pb2.AssignedWorker(worker_id="x" * 100_000, address="nowhere")
    assignment = control_pb2.Assignment(version=9, topology=TOPOLOGY, workers=[broken])
    request = control_pb2.UpdateAssignmentRequest(assignment=assignment)
    answer = ask(endpoint, f"{CONTROL}UpdateAssignment", request.SerializeToString())
    assert (answer.status, answer.error) == MALFORMED, answer


def test_displaced_streams_hear_of_it(endpoint: Endpoint) -> None:
    """When streams of one session displace each other, each ends with a named error, and none hangs."""

    def streams(_: int) -> list[Answer]:
        with grpc.insecure_channel(endpoint.address, options=OPTIONS) as channel:
            return [talk_over(channel, SEND, [hello(sender_id="displaced"), b"\xff"]) for _ in range(50)]

    with ThreadPoolExecutor(6) as pool:
        answers = [answer for each in pool.map(streams, range(6)) for answer in each]
    assert {answer.error for answer in answers} <= {"MALFORMED", "SEQUENCE_GAP"}


def test_refused_frame_takes_nothing_with_it(endpoint: Endpoint) -> None:
    """A frame with one broken group is refused as a whole; a resumed session continues before it."""
    task = 4
    good, bad = frame(1, task=task), raw_frame(task=task, lengths=lengths(9), data=b"x")
    body = b"\x08\x02" + good[4:] + bad[bad.index(b"\x12", 3) :]
    same = {"sender_id": "resumes", "incarnation": 1}
    broken = talk(endpoint, SEND, [hello(**same), good, b"\x12" + varint(len(body)) + body])
    assert (broken.status, broken.error) == MALFORMED
    assert queued(endpoint, task) == 1
    again = hello(**same, session_id=pb.SendResponse.FromString(broken.responses[0]).welcome.session_id)
    resumed = talk(endpoint, SEND, [again, frame(1, task=task), frame(3, task=task)])
    assert pb.SendResponse.FromString(resumed.responses[0]).welcome.accepted_sequence == 1
    assert resumed.error == "SEQUENCE_GAP"
    assert queued(endpoint, task) == 1


def test_progress_beyond_everything_is_cut(endpoint: Endpoint) -> None:
    """A consumer that acknowledges and grants 2^64-1 gets the available messages; the worker continues."""
    task = 5
    with Client(endpoint.address, topology=TOPOLOGY) as client:
        deliver(client, numbered(task, range(10)))
        most = 2**64 - 1
        cursor = cursor_of(task, most, most, most, most)
        greedy = pb.RecvRequest(progress=pb.Progress(tasks=[cursor])).SerializeToString()
        goodbye = pb.RecvRequest(goodbye=pb.Goodbye()).SerializeToString()
        opening = subscribe(task, tasks=[cursor])
        assert talk(endpoint, RECV, [opening, greedy, greedy, goodbye]).status is grpc.StatusCode.OK
        left = queued(endpoint, task)
        client.send(numbered(task, range(10, 20)))
        assert numbers(collect(client.recv([task], timeout=10), left + 10)) == list(range(10 - left, 20))
