"""The rows of teams: barriers, sums and round trips among processes with two workers between them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from statistics import median
from typing import Any, NamedTuple

import grpc
import numpy as np
import zmq
from agent import Agent, Verb, serve
from links import Links
from report import RATE, Line, compared, in_turns
from rows import LATENCY_RATE, milliseconds
from spark_agent import spark
from workload import TOPOLOGY, WAIT_SECONDS

from tuplewire import Team
from tuplewire.processes.worker_processes import WorkerProcesses


class _Row(NamedTuple):
    """A row: `ways` is the time of this number of ways through two workers; 0: the same over bare gRPC."""

    title: str
    ranks: int
    target: float
    verb: str
    ways: int = 0
    size_bytes: int = 0
    calls: int = 300


_ROWS = {
    "team/barrier/2": _Row("a barrier of 2 ranks", 2, 1.5, "barrier", 1),
    "team/barrier/4": _Row("a barrier of 4 ranks", 4, 3.0, "barrier", 1),
    "team/reduce/2/8KiB": _Row("the sum of 8,192 bytes over 2 ranks", 2, 2.5, "reduce", 0, 8192),
    "team/reduce/4/8KiB": _Row("the sum of 8,192 bytes over 4 ranks", 4, 2.5, "reduce", 0, 8192),
    "team/reduce/4/8MB": _Row("the sum of 8,000,000 bytes over 4 ranks", 4, 1.67, "reduce", 0, 8_000_000, 5),
    "team/pingpong": _Row("a value to another rank and back", 2, 1.1, "pingpong", 2),
}
TEAM_ROWS = tuple(_ROWS)
_GRPC = "bare gRPC, all to all, without workers"
_ZMQ = "pyzmq, through one ROUTER"
_SPARK = "Spark's barrier()"
_SPARK_TARGET = 300.0
_SPARK_BARRIERS = 3
_WAYS = ("", "one way through two workers, p50", "two one-way times through two workers")
_ROUNDS = 3
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class _Ranks:
    """The processes of one side, which make each call at the same time."""

    def __init__(self, stack: ExitStack, roles: Sequence[tuple[Any, ...]]) -> None:
        self._agents = [stack.enter_context(Agent(*role)) for role in roles]
        self._pool = stack.enter_context(ThreadPoolExecutor(len(roles)))

    def ask(self, verb: str, **how: Any) -> list[dict[str, Any]]:
        """Send a request to all; return their answers."""
        return list(self._pool.map(lambda agent: agent.ask(verb, **how), self._agents))

    def milliseconds(self, row: _Row) -> float:
        """Return the median time of a call, over all ranks."""
        how = {"size_bytes": row.size_bytes} if row.size_bytes else {}
        answers = self.ask(row.verb, rounds=row.calls, **how)
        times: list[int] = [time for each in answers for time in each["ns"]]
        return median(times) / 1e6


def measure_team(links: Links, names: Sequence[str], _: float) -> list[Line]:
    """Run the rows and their comparisons in turns."""
    rows = {name: _ROWS[name] for name in names}
    session = links.agent(spark, [""]) if any(each.verb == "barrier" for each in rows.values()) else None
    return [line for size in (2, 4) for line in _lines(links, rows, size, session)]


def _lines(links: Links, rows: dict[str, _Row], size: int, session: Agent | None) -> Iterator[Line]:
    with ExitStack() as stack:
        workers = stack.enter_context(WorkerProcesses(2, TOPOLOGY, flags=["--drain-seconds=1"]))
        workers.assign({0: range(1, size + 1, 2), 1: range(2, size + 1, 2)})
        addresses = [each.address for each in workers.endpoints]
        team = _Ranks(stack, [(member, addresses[rank % 2], rank, size) for rank in range(size)])
        direct = _Ranks(stack, [(bare, rank, size) for rank in range(size)])
        team.ask("join")
        direct.ask("connect", ports=[each["port"] for each in direct.ask("port")])
        port = stack.enter_context(Agent(router)).ask("port")["port"]
        routed = _Ranks(stack, [(dealer, port, rank, size) for rank in range(size)])
        routed.ask("connect")

        def one_way() -> float:
            return milliseconds([links["chain"].paced(LATENCY_RATE, 1.0)], 50)[0]

        def sparks_barrier() -> float:
            assert session is not None
            answer = session.ask("barrier", within=WAIT_SECONDS, ranks=size, count=_SPARK_BARRIERS)
            times: list[int] = answer["ns"]
            return median(times) / 1e6

        for name, row in rows.items():
            if row.ranks != size:
                continue
            against: dict[str, Callable[[], float]] = {}
            if row.ways:
                against[_WAYS[row.ways]] = one_way
            else:
                against = {_GRPC: partial(direct.milliseconds, row), _ZMQ: partial(routed.milliseconds, row)}
            if row.verb == "barrier":
                against[_SPARK] = sparks_barrier
            rounds = in_turns(name, _ROUNDS, {"team": partial(team.milliseconds, row), **against})
            for title in against:
                times = [(each["team"], each[title]) for each in rounds]
                target: float | None = row.target
                if title == _SPARK:
                    pairs, unit, target = [(1000 / a, 1000 / b) for a, b in times], RATE, _SPARK_TARGET
                else:
                    pairs, unit = [(a, (row.ways or 1) * b) for a, b in times], "ms"
                    target = None if title == _ZMQ else target
                yield compared(name, f"{row.title}, p50", unit, pairs, title, target=target)


# Each makes `rounds` calls of a kind, and returns the nanoseconds of each.


def timed(call: Callable[[], object], rounds: int) -> dict[str, Any]:
    """Make calls, one after another; return the time of each."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begun)
    return {"ns": times}


def member(address: str, rank: int, size: int) -> None:
    """Be a rank of a team, which it joins at the first request."""
    teams: list[Team] = []

    def pingpong() -> None:
        (team,) = teams
        if rank == 0:
            team.send(1, b"x" * 1024)
            team.recv(1)
        else:
            team.recv(0)
            team.send(0, b"x" * 1024)

    def reduce(size_bytes: int, rounds: int) -> dict[str, Any]:
        mine = np.full(size_bytes // 8, rank + 1.0)
        return timed(lambda: teams[0].all_reduce(mine), rounds)

    serve(
        {
            "join": lambda: teams.append(Team(range(1, size + 1), rank, address=address, topology=TOPOLOGY)),
            "barrier": lambda rounds: timed(teams[0].barrier, rounds),
            "reduce": reduce,
            "pingpong": lambda rounds: timed(pingpong, rounds),
        }
    )
    teams[0].close()


def serve_sums(
    rank: int,
    size: int,
    send: Callable[[bytes], Sequence[grpc.Future[bytes]]],
    wait: Callable[[int], dict[int, bytes]],
    **verbs: Verb,
) -> None:
    """Serve `reduce`: send the array to all other ranks, wait for the arrays of a call, sum in rank order."""
    numbers = count(1)

    def reduce(size_bytes: int, rounds: int) -> dict[str, Any]:
        mine = np.full(size_bytes // 8, rank + 1.0)

        def call() -> None:
            number = next(numbers)
            sent = send(number.to_bytes(4, "big") + bytes([rank]) + mine.tobytes())
            others = wait(number)
            total = np.zeros_like(mine)
            for each in range(size):
                total += mine if each == rank else np.frombuffer(others[each])
            for future in sent:
                future.result(WAIT_SECONDS)

        return timed(call, rounds)

    serve({"reduce": reduce, **verbs})


def bare(rank: int, size: int) -> None:
    """Be a rank of bare gRPC: a unary call for each array."""
    arrived: dict[int, dict[int, bytes]] = defaultdict(dict)
    changed = threading.Condition()
    puts: list[Any] = []

    def put(request: bytes, _: grpc.ServicerContext) -> bytes:
        with changed:
            arrived[int.from_bytes(request[:4], "big")][request[4]] = request[5:]
            changed.notify_all()
        return b""

    def wait(number: int) -> dict[int, bytes]:
        with changed:
            assert changed.wait_for(lambda: len(arrived[number]) == size - 1, WAIT_SECONDS)
            return arrived.pop(number)

    def connect(ports: list[int]) -> None:
        for port in (each for other, each in enumerate(ports) if other != rank):
            channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
            grpc.channel_ready_future(channel).result(WAIT_SECONDS)
            puts.append(channel.unary_unary("/b/Put"))

    def send(payload: bytes) -> list[grpc.Future[bytes]]:
        return [each.future(payload) for each in puts]

    server = grpc.server(ThreadPoolExecutor(size), options=_OPTIONS)
    method: Any = grpc.unary_unary_rpc_method_handler(put)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("b", {"Put": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    serve_sums(rank, size, send, wait, port=lambda: {"port": port}, connect=connect)


def router() -> None:
    """Forward each message to the rank that its first part names."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def forward() -> None:
        while True:
            _, rank, payload = socket.recv_multipart(copy=False)
            socket.send_multipart([rank, payload], copy=False)

    threading.Thread(target=forward, daemon=True).start()
    serve({"port": lambda: {"port": port}})


def dealer(port: int, rank: int, size: int) -> None:
    """Be a rank of pyzmq: one message for each other rank, through the router."""
    arrived: dict[int, dict[int, bytes]] = defaultdict(dict)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, _name(rank))
    socket.setsockopt(zmq.RCVTIMEO, round(WAIT_SECONDS * 1000))
    socket.connect(f"tcp://127.0.0.1:{port}")

    def connect() -> None:
        socket.send_multipart([_name(rank), b""])  # a ROUTER drops messages for a rank that it does not know
        socket.recv()

    def send(payload: bytes) -> tuple[()]:
        for other in range(size):
            if other != rank:
                socket.send_multipart([_name(other), payload], copy=False)
        return ()

    def wait(number: int) -> dict[int, bytes]:
        while len(arrived[number]) < size - 1:
            request = socket.recv()
            arrived[int.from_bytes(request[:4], "big")][request[4]] = request[5:]
        return arrived.pop(number)

    serve_sums(rank, size, send, wait, connect=connect)


def _name(rank: int) -> bytes:
    return b"rank %d" % rank
