"""The ZeroMQ transport alone: framing, invalid data, sockets, settings, streams, and workers that use it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from helpers.hostile import hello
from helpers.program import Program
from helpers.tools import output_of, ran
from helpers.topology import TOPOLOGY as OF_WORKERS
from helpers.topology import Pair, assign, status
from helpers.traffic import deliver
from helpers.worker_process import run_command
from helpers.zmq_ends import PLENTY, Stranger, bound, sender, server, transport, works

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.loop import messaging_thread
from tuplewire.connection.stream import StreamBroken
from tuplewire.errors import BindError, ConfigError, TaskNotLocalError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.message import TaskMessage
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.messaging.server_stream import ServerStream
from tuplewire_service.messaging.zmq import zmq_transport
from tuplewire_service.messaging.zmq.zmq_sockets import Sockets, ZmqSettings
from tuplewire_service.messaging.zmq.zmq_stream import ZERO, FrameKind, encode, zmq_stream_opener
from tuplewire_service.testing import eventually
from tuplewire_service.testing.harness import HOST, TOPOLOGY, Recorder, is_ready, settled_condition


@pytest.mark.parametrize(
    "parts",
    [
        [b"garbage"],
        [b"x" * 17, b""],
        [bytes([FrameKind.DATA]) + bytes(16), b"before it was opened"],
        [bytes([FrameKind.OPEN]) + bytes(16), b"NoSuchMethod"],
        [bytes([FrameKind.OPEN]) + bytes(16), b"\xff\xfe"],
        [bytes([FrameKind.REFUSED]) + bytes(16), b""],
    ],
)
def test_garbage_is_answered_and_counted(recorder: Recorder, parts: list[bytes]) -> None:
    """Invalid frames get one answer and are counted once; valid clients are still served."""
    with bound(recorder) as (context, bound_server), Stranger(bound_server.port) as stranger:
        for _ in range(3):
            stranger.say(*parts)
        assert stranger.ending() == "MALFORMED"
        works(context, bound_server.port, recorder)
        assert bound_server.statistics().refused_streams == {"MALFORMED": 1}


@pytest.mark.parametrize(
    "misuse",
    [
        [(FrameKind.OPEN, b"Send")],
        [(FrameKind.REFUSED, b"")],
        [(FrameKind.DONE, b""), (FrameKind.DATA, b"late")],
        [(FrameKind.DATA, b"no hello")],
    ],
)
def test_misuse_of_a_stream_ends_it(recorder: Recorder, misuse: list[tuple[FrameKind, bytes]]) -> None:
    """A second opening, a server's frame, data after the end, or no hello: the stream is refused."""
    with bound(recorder) as (context, bound_server), Stranger(bound_server.port) as stranger:
        stranger.put(FrameKind.OPEN, b"Send")
        for kind, body in misuse:
            stranger.put(kind, body)
        assert stranger.ending() == "MALFORMED"
        eventually(lambda: not bound_server._streams)
        works(context, bound_server.port, recorder)


def test_who_writes_more_than_is_allowed_is_cut_off(recorder: Recorder) -> None:
    """The window limits the data that a client can make the server store."""
    with bound(recorder, zmq__hwm=10) as (context, bound_server), Stranger(bound_server.port) as stranger:
        stranger.put(FrameKind.OPEN, b"Send", ZERO)  # so that the server cannot answer, and stops reading
        stranger.put(FrameKind.DATA, hello(topology=TOPOLOGY), ZERO)
        for _ in range(100):
            stranger.put(FrameKind.DATA, b"x", ZERO)
        assert stranger.ending() == "MALFORMED"
        works(context, bound_server.port, recorder)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n" * 100,
        b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04\x03xxx" * 100,
    ],
    ids=["text", "handshake"],
)
def test_what_is_no_zeromq_is_counted(recorder: Recorder, said: bytes) -> None:
    """Text, which ZeroMQ reads as its oldest version, and a failed handshake are counted and do no harm."""
    with bound(recorder) as (context, bound_server):
        with socket.create_connection(("127.0.0.1", bound_server.port), 20) as connection:
            connection.sendall(said)
            eventually(lambda: bound_server.statistics().refused_streams.get("MALFORMED", 0) > 0, timeout=20)
        works(context, bound_server.port, recorder)


def test_a_message_over_the_limit_ends_its_connection(recorder: Recorder) -> None:
    """A client cannot make the server store more than the largest request."""
    with bound(recorder) as (context, bound_server), Stranger(bound_server.port) as stranger:
        stranger.put(FrameKind.OPEN, b"Send")
        eventually(lambda: len(bound_server._streams) == 1)
        stranger.put(FrameKind.DATA, bytes(2**23))
        eventually(lambda: not bound_server._streams)
        works(context, bound_server.port, recorder)


def test_the_oldest_zeromq_is_refused() -> None:
    """Version 1.0 of ZMTP has no heartbeats, so its clients get an error that names the required version."""
    with bound(Recorder()) as (_, bound_server):
        header, body = encode(FrameKind.OPEN, PLENTY, b"Send")
        said = b"\x01\x00" + bytes([1 + len(header), 1]) + header + bytes([1 + len(body), 0]) + body
        with socket.create_connection(("127.0.0.1", bound_server.port), 20) as connection:
            connection.sendall(said)
            heard = b""
            while b"libzmq 4.2" not in heard:
                heard += connection.recv(1000)


def test_random_frames_do_no_harm(recorder: Recorder) -> None:
    """After random frames, the server still works and retains no stream of the sender."""
    chance = random.Random(1)
    with bound(recorder) as (context, bound_server):
        for _ in range(50):
            with Stranger(bound_server.port) as stranger:
                if chance.random() < 0.5:
                    stranger.put(FrameKind.OPEN, chance.choice([b"Send", b"Recv"]))
                for _ in range(20):
                    header = bytes([chance.randrange(8)]) + chance.randbytes(
                        16 if chance.random() < 0.8 else 9
                    )
                    stranger.say(
                        *[header, chance.randbytes(chance.randrange(50)), b"x"][: chance.choice([1, 2, 2, 3])]
                    )
                with contextlib.suppress(zmq.Again):
                    stranger.ending()
        works(context, bound_server.port, recorder)
        eventually(lambda: not bound_server._streams and not bound_server._ended_connections, timeout=10)


def test_there_is_a_bound_on_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream beyond the limit is refused, and is accepted when another one closes."""
    monkeypatch.setattr(zmq_transport, "_MAX_STREAMS", 1)
    recorder = Recorder()
    with bound(recorder) as (context, bound_server):
        clients = [context.connect(TOPOLOGY, HOST, bound_server.port) for _ in range(2)]
        for client in clients:
            client.send(1, b"x")
        eventually(lambda: bound_server.statistics().refused_streams.get("RESOURCE_LIMIT", 0) > 0, timeout=20)
        eventually(lambda: [client for client in clients if is_ready(client)], timeout=20)[0].close()
        eventually(lambda: len(recorder.received()) == 2, timeout=20)


def test_a_socket_file_that_was_left_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In local mode, a running process holds its port, and a killed one does not."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"tuplewire-zmq-{os.getuid()}"
    conf = {"storm__cluster__mode": "local"}
    recorder = Recorder()
    with Program(server, "local", str(tmp_path)) as program:
        port = program.ask("port")
        assert (place / f"{port}.ipc").is_socket()
        with transport(**conf) as context:
            with pytest.raises(BindError, match="in use"):
                context.bind(TOPOLOGY, port, recorder)
            os.kill(program.process_id, signal.SIGKILL)
            program.await_end()
            assert (place / f"{port}.ipc").is_socket()
            assert context.bind(TOPOLOGY, port, recorder).addresses == [f"ipc://{place}/{port}.ipc"]
            works(context, port, recorder)
        assert not list(place.iterdir())


def test_errors_of_the_configuration_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors for an unknown mode, a number out of range and a path too long for a socket name the setting."""
    for key, value in (("storm.cluster.mode", "remote"), ("zmq.threads", 0), ("zmq.linger.millis", -1)):
        with pytest.raises(ConfigError, match=key):
            TransportFactory.make_context({TRANSPORT_KEY: "zmq", key: value})
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with (
        transport(storm__cluster__mode="local") as context,
        pytest.raises(ConfigError, match="set TMPDIR to a shorter path"),
    ):
        context.bind(TOPOLOGY, 0, Recorder())


FORKING = """
import os, sys
from tuplewire_service.messaging.factory import TransportFactory

port = int(sys.argv[1])
conf = {"storm.messaging.transport": "zmq"}
context = TransportFactory.make_context(conf)
client = context.connect("conformance", "127.0.0.1", port)
client.send(1, b"parent before")
child = os.fork()
if child == 0:
    files = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if os.path.lexists(each.path)]
    assert "anon_inode:[eventfd]" not in files, f"ZeroMQ is still open: {files}"
    mine = TransportFactory.make_context(conf)
    client = mine.connect("conformance", "127.0.0.1", port)
    client.send(2, b"child")
    client.close()
    assert client.statistics().ledger.acknowledged == 1
    mine.term()
    os._exit(0)
client.send(1, b"parent after")
_, status = os.waitpid(child, 0)
context.term()
assert client.statistics().ledger.acknowledged == 2
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_process_with_connections_may_fork(recorder: Recorder) -> None:
    """The parent's session continues; the child inherits no sockets and can open its own sessions."""
    with bound(recorder) as (_, bound_server):
        output_of(FORKING, str(bound_server.port))
        assert recorder.payloads(1) == [b"parent before", b"parent after"]
        assert recorder.payloads(2) == [b"child"]


def test_large_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames near the size limit arrive over TCP and over Unix sockets."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for conf in ({}, {"storm__cluster__mode": "local"}):
        recorder = Recorder()
        with bound(recorder, **conf) as (context, bound_server):
            client = context.connect(TOPOLOGY, HOST, bound_server.port)
            payloads = [bytes([number]) * 2**20 for number in range(20)]
            client.send(TaskMessageBatch.from_columns(1, payloads))
            eventually(settled_condition(client), timeout=30)
            assert recorder.payloads(1) == payloads


def test_without_pyzmq_the_error_says_what_to_install() -> None:
    """The transport is imported only if it is configured; without pyzmq, the error names the extra."""
    code = (
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'zmq' else find(name, *rest)\n"
        "from tuplewire_service.command.cli import main\n"
        "exit(main(['worker', '--transport=zmq', '--listen=127.0.0.1:0', '--listen-admin=127.0.0.1:0']))"
    )
    ended = ran(sys.executable, "-c", code)
    assert ended.returncode == 1
    assert "pip install 'tuplewire[zmq]'" in ended.stderr


LAST_MESSAGES = 5
CLOSED_TIMES = 50


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """Yield the sockets that streams are opened with."""
    made = Sockets(ZmqSettings())
    yield made
    messaging_thread().run(made.suspend(), timeout=20)


def test_a_peer_that_does_not_read_holds_nobody_up(recorder: Recorder) -> None:
    """A peer that does not read delays its own messages, but not the messages of other clients."""
    with bound(recorder, zmq__hwm=4) as (context, bound_server), Stranger(bound_server.port) as stranger:
        stranger.put(FrameKind.OPEN, b"Send", ZERO)
        eventually(lambda: len(bound_server._streams) == 1)
        client = context.connect(TOPOLOGY, HOST, bound_server.port)
        for number in range(200):
            client.send(1, b"%d" % number)
        eventually(settled_condition(client))
        assert recorder.payloads(1) == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("hwm", [0, 1])
def test_any_high_water_mark_will_do(recorder: Recorder, hwm: int) -> None:
    """The smallest window makes a stream slow; with Storm's 0, only the bytes are limited."""
    with bound(recorder, zmq__hwm=hwm) as (context, bound_server):
        client = context.connect(TOPOLOGY, HOST, bound_server.port)
        for number in range(500):
            client.send(1, b"%d" % number)
        eventually(settled_condition(client), timeout=30)
        assert recorder.payloads(1) == [b"%d" % number for number in range(500)]
        assert client.statistics().reconnects == 0


def test_the_last_messages_of_a_server_that_closes_arrive(sockets: Sockets) -> None:
    """Messages that a server writes to a stream before it closes are read on the other side."""

    async def served(stream: ServerStream) -> None:
        while await stream.read() != b"end":
            pass
        for number in range(LAST_MESSAGES):
            await stream.write(b"%d" % number)

    async def read(endpoint: str, asked: threading.Event) -> list[bytes]:
        got: list[bytes] = []
        async with zmq_stream_opener(sockets, endpoint, endpoint, ZmqSettings().stream_window)(
            "Last"
        ) as stream:
            await stream.write(b"end")
            asked.set()
            with contextlib.suppress(StreamBroken):
                for _ in range(LAST_MESSAGES):  # not read by a server that is about to close
                    await stream.write(b"more")
            with contextlib.suppress(StreamBroken):
                while (message := await stream.read()) is not None:
                    got.append(message)
        return got

    for _ in range(CLOSED_TIMES):
        with bound(Recorder()) as (_, closing):
            closing._handlers["Last"] = served
            asked = threading.Event()
            reading = messaging_thread().submit(read(f"tcp://{HOST}:{closing.port}", asked))
            assert asked.wait(10)
            closing.close()
        assert reading.result(10) == [b"%d" % number for number in range(LAST_MESSAGES)]


def test_a_killed_client_is_forgotten(recorder: Recorder) -> None:
    """A killed client's stream ends, and the messages that arrived before are complete."""
    with bound(recorder) as (context, bound_server), Program(sender, bound_server.port) as program:
        eventually(lambda: len(recorder.received()) > 100, timeout=30)
        os.kill(program.process_id, signal.SIGKILL)
        eventually(lambda: not bound_server._streams, timeout=10)
        numbers = [int(payload) for payload in recorder.payloads(1)]
        assert numbers == list(range(len(numbers)))
        works(context, bound_server.port, recorder)


FLAGS = ("--transport=zmq",)
"""The flags of the two workers of `pair`."""


def test_errors_name_the_address_for_programs(pair: Pair) -> None:
    """A program that connects to the wrong worker gets the address that serves programs."""
    with (
        Client(pair.near.address, topology=OF_WORKERS) as client,
        pytest.raises(TaskNotLocalError, match=pair.far.address),
    ):
        next(client.recv([pair.far_task()], timeout=5, follow=False))


def test_reports_have_both_addresses(pair: Pair) -> None:
    """The address file, the status and the assignment contain the address for peers, a separate one."""
    assert pair.near.peer_address.startswith("127.0.0.1:")
    assert pair.near.peer_address != pair.near.address
    told = status(pair.near)
    assert list(told.addresses) == [pair.near.address, pair.near.unix_address]
    assert list(told.peer_addresses) == [pair.near.peer_address]
    assert [peer.address for peer in told.peers] == [pair.far.peer_address]
    for flags, text in (([], f"for peers   {pair.near.peer_address}"), (["--json"], "peer_addresses")):
        assert text in run_command("status", "--address", pair.near.address, *flags).stdout
    with ControlClient(pair.near.address) as control:
        assignment = control.get_assignment()
    assert assignment is not None
    addresses = {worker.peer_address for worker in assignment.workers}
    assert addresses == {pair.near.peer_address, pair.far.peer_address}


def test_a_program_may_speak_zeromq_to_a_worker(pair: Pair, task: int) -> None:
    """The port for peers accepts sessions of any sender, and reports refusals as gRPC does."""
    context = TransportFactory.make_context({TRANSPORT_KEY: "zmq"})
    try:
        connection = context.connect(OF_WORKERS, "127.0.0.1", int(pair.near.peer_address.rpartition(":")[2]))
        connection.send([TaskMessage(task, b"a"), TaskMessage(99_999, b"nobody's")])
        eventually(settled_condition(connection))
        ledger = connection.statistics().ledger
        assert (ledger.acknowledged, ledger.dropped["unknown_task"]) == (1, 1)
    finally:
        context.term()
    with Client(pair.near.address, topology=OF_WORKERS) as client:
        assert next(client.recv([task], timeout=10)).payloads == [b"a"]


def test_a_worker_ends_beside_a_stopped_peer(tmp_path: Path) -> None:
    """A worker drops messages for a peer that does not answer in time, and reports this with exit code 1."""
    flags = ["--transport=zmq", "--drain-seconds=1"]
    with contextlib.ExitStack() as stack:
        workers = []
        for name in "ab":
            (tmp_path / name).mkdir()
            own = [*flags, f"--worker-id={name}"]
            workers.append(
                WorkerProcesses(1, OF_WORKERS, directory=tmp_path / name, flags=own, drain_seconds=1)
            )
            stack.enter_context(workers[-1])
        a, b = (each.endpoints[0] for each in workers)
        assign((a, b), 1, {a: [1], b: [2]})
        with Client(a.address, topology=OF_WORKERS) as client:
            deliver(client, 2, b"x")
            os.kill(b.process_id, signal.SIGSTOP)
            deliver(client, 2, b"y")
        try:
            assert workers[0].stop() == [1]
        finally:
            os.kill(b.process_id, signal.SIGCONT)


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_ipv6(transport: str) -> None:
    """An IPv6 host can be given with or without brackets."""
    context = TransportFactory.make_context({TRANSPORT_KEY: transport, "tuplewire.transport.host": "[::1]"})
    recorder = Recorder()
    try:
        server = context.bind(TOPOLOGY, 0, recorder)
        assert server.addresses == [f"[::1]:{server.port}"]
        for host in ("::1", "[::1]"):
            context.connect(TOPOLOGY, host, server.port).send(1, host.encode())
        eventually(lambda: sorted(recorder.payloads(1)) == [b"::1", b"[::1]"], timeout=20)
    finally:
        context.term()
