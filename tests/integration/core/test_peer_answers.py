"""Wrong answers of a peer, which a worker survives, and late ones, for which a client gathers messages."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import grpc
import pytest
from helpers.program import in_threads
from helpers.served import Answer, answering, welcome
from helpers.topology import assign, ledger, numbered, numbers, one_worker, status
from helpers.traffic import client_of, deliver, take

from tuplewire import Client
from tuplewire.connection.grpc_channel import ERROR_KEY
from tuplewire.connection.loop import messaging_thread
from tuplewire.connection.pacer import BURST_FRAMES
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.session.ack_requests import QUICK_SECONDS
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire_service.testing import eventually

LOCAL, FAR = 0, 1


def _refusal(code: str) -> Answer:
    def answer(_requests: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
        context.set_trailing_metadata(((ERROR_KEY, code),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{code} for this test")

    return answer


def _ended(code: int) -> Answer:
    def answer(requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        yield welcome()
        yield pb.SendResponse(ended=pb.Ended(code=code, detail="for this test")).SerializeToString()  # type: ignore[arg-type]

    return answer


def _saying(*responses: bytes) -> Answer:
    def answer(requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        yield from responses
        next(requests, None)

    return answer


def _ack(**fields: Any) -> bytes:
    return pb.SendResponse(ack=pb.Ack(**fields)).SerializeToString()


WIDEST = 2**64 - 1
ANSWERS: dict[str, Answer] = {
    "another topology": _refusal("WRONG_TOPOLOGY"),
    "a stale incarnation": _refusal("STALE_INCARNATION"),
    "another protocol": _refusal("PROTOCOL_VERSION"),
    "superseded": _refusal("SUPERSEDED"),
    "malformed": _refusal("MALFORMED"),
    "a code of a later release": _refusal("NEVER_HEARD_OF"),
    "ended after the welcome": _ended(pb.ERROR_CODE_WRONG_TOPOLOGY),
    "ended as nobody ends": _ended(12345),
    "a welcome of another protocol": _saying(welcome(protocol_version=77)),
    "no protobuf": _saying(b"\xff" * 40),
    "no protobuf after the welcome": _saying(welcome(), b"\xff" * 40),
    "an acknowledgement of what was never sent": _saying(welcome(), _ack(sequence=WIDEST)),
    "a session that nobody began": _saying(welcome(accepted_sequence=WIDEST)),
    "credit and refusals of nothing": _saying(
        welcome(),
        _ack(
            credits=[pb.TaskCredit(task=-5, messages=WIDEST, released_messages=WIDEST, flow_path=WIDEST)],
            refusals=[pb.Refusal(frame_sequence=WIDEST, task=-5, messages=WIDEST, flow_path=WIDEST)],
        ),
    ),
}


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Endpoint, Iterator[int]]]:
    """Run one worker for all these answers, which it must survive; yield it with a counter of versions."""
    directory = tmp_path_factory.mktemp("near")
    with WorkerProcesses(
        1, "test", directory=directory, flags=["--worker-id=near", "--drain-seconds=1"]
    ) as workers:
        yield workers.endpoints[0], iter(range(1, 1000))
        last = ledger(workers.endpoints[0])
        assert last.balanced
        assert workers.stop() == [bool(last.pending)]


@pytest.mark.parametrize("name", ANSWERS)
def test_what_one_peer_answers_concerns_its_messages_alone(
    near: tuple[Endpoint, Iterator[int]], name: str
) -> None:
    """Messages to the peer wait while the worker retries; a local task continues, and the ledger balances."""
    worker, versions = near
    before = ledger(worker)
    calls = []

    def counted(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        calls.append(context)
        return ANSWERS[name](requests, context)

    with answering(counted) as address, client_of(worker.address) as client:
        assign(worker, next(versions), {("near", worker.address): [LOCAL], ("far", address): [FAR]})
        eventually(lambda: len(calls) >= 2, 10, "tried again")
        client.send(numbered(FAR, range(10)))
        deliver(client, numbered(LOCAL, range(10)))
        assert numbers(take(worker, LOCAL, 10)) == list(range(10))
        seen = len(calls)
        eventually(lambda: len(calls) >= seen + 2, 10, "tried again with messages")
        after = ledger(worker)
        assert after.balanced
        assert after.accepted - before.accepted == 20
        assert sum(after.dropped.values()) == sum(before.dropped.values())


@pytest.mark.usefixtures("no_fork_server")  # a new interpreter runs sitecustomize.py
def test_a_worker_that_comes_back_with_an_earlier_clock_is_let_in(tmp_path: Path) -> None:
    """A peer accepts a restarted worker and its messages, even if its incarnation is lower than before."""
    shift = tmp_path / "clock"
    shift.mkdir()
    (shift / "sitecustomize.py").write_text(
        "import time\nnow = time.time_ns\ntime.time_ns = lambda: now() - 30_000_000_000\n"
    )
    with one_worker("b", directory=tmp_path) as b:
        meant = {}
        with one_worker("a", directory=tmp_path) as a:
            meant = {a: [0], b: [1]}
            assign((a, b), 1, meant)
            with client_of(a.address) as client:
                deliver(client, numbered(1, range(10)))
            eventually(lambda: ledger(b).accepted == 10)
            incarnation = status(a).incarnation
            os.kill(a.process_id, signal.SIGKILL)
        port = int(a.address.rpartition(":")[2])
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYTHONPATH", os.pathsep.join([str(shift), os.environ.get("PYTHONPATH", "")]))
            again = one_worker("a", directory=tmp_path, port=port)
            with again as earlier, client_of(earlier.address) as client:
                assert status(earlier).incarnation < incarnation
                assign(earlier, 1, {earlier: [0], b: [1]})
                deliver(client, numbered(1, range(10, 20)))
                assert numbers(take(b, 1, 20)) == list(range(20))


class Receiver:
    """Receives frames, and acknowledges them when a test requests it."""

    def __init__(self) -> None:
        self.frames: SimpleQueue[int] = SimpleQueue()
        """The number of messages in each frame."""
        self._responses: SimpleQueue[bytes | None] = SimpleQueue()
        self._taken = 0

    def answer(self, requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer a Send stream."""
        next(requests)
        yield welcome()
        threading.Thread(target=self._take, args=(requests,), daemon=True).start()
        yield from iter(self._responses.get, None)

    def _take(self, requests: Iterator[bytes]) -> None:
        for request in requests:
            frame = decode(pb.SendRequest, request)
            if isinstance(frame, OpaqueFrame):
                self._taken += 1
                self.frames.put(sum(map(len, groups_of(frame))))
        self.end()

    def end(self) -> None:
        self._responses.put(None)

    def acknowledge(self) -> None:
        """Acknowledge all received frames."""
        ack = pb.Ack(sequence=self._taken)
        self._responses.put(pb.SendResponse(ack=ack).SerializeToString())


def let_loop_turn() -> None:
    """Let the client's event loop finish its pending work, including the write of a frame."""
    for _ in range(10):
        messaging_thread().call(lambda: None)


def test_what_follows_a_burst_is_gathered() -> None:
    """Messages after a burst share a frame, which is sent at the next acknowledgement or flush."""
    handler = Receiver()
    with (
        answering(handler.answer) as address,
        Client(address, topology="test", linger_seconds=3600.0, flush_timeout_seconds=0.1) as client,
    ):
        for _ in range(BURST_FRAMES):
            client.send(1, b"x")
            assert handler.frames.get(timeout=20) == 1
            time.sleep(QUICK_SECONDS)  # faster frames wait for an acknowledgement anyway
        for _ in range(5):
            client.send(1, b"x")
            let_loop_turn()
        handler.acknowledge()
        assert handler.frames.get(timeout=20) == 5
        for _ in range(7):
            client.send(1, b"x")
            let_loop_turn()
        with in_threads(partial(client.flush, 20)):
            assert handler.frames.get(timeout=20) == 7
            handler.acknowledge()
        assert client.ledger().acknowledged == BURST_FRAMES + 12
