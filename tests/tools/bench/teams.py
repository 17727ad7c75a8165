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
from agent import Agent, serve
from links import Links
from report import Line, compared, in_turns
from rows import LATENCY_RATE, milliseconds
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
_AGAINST = ("bare gRPC, all to all, without workers", "one way through two workers, p50")
_TWO_WAYS = "two one-way times through two workers"
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
    return [line for size in (2, 4) for line in _lines(links, rows, size)]


def _lines(links: Links, rows: dict[str, _Row], size: int) -> Iterator[Line]:
    with ExitStack() as stack:
        workers = stack.enter_context(WorkerProcesses(2, TOPOLOGY, flags=["--drain-seconds=1"]))
        workers.assign({0: range(1, size + 1, 2), 1: range(2, size + 1, 2)})
        addresses = [each.address for each in workers.endpoints]
        team = _Ranks(stack, [(member, addresses[rank % 2], rank, size) for rank in range(size)])
        others = _Ranks(stack, [(bare, rank, size) for rank in range(size)])
        team.ask("join")
        others.ask("connect", ports=[each["port"] for each in others.ask("port")])

        def one_way() -> float:
            return milliseconds([links["chain"].paced(LATENCY_RATE, 1.0)], 50)[0]

        for name, row in rows.items():
            if row.ranks != size:
                continue
            against = one_way if row.ways else partial(others.milliseconds, row)
            rounds = in_turns(name, _ROUNDS, {"team": partial(team.milliseconds, row), "other": against})
            pairs = [(each["team"], (row.ways or 1) * each["other"]) for each in rounds]
            title = _TWO_WAYS if row.ways == 2 else _AGAINST[row.ways]
            yield compared(name, f"{row.title}, p50", "ms", pairs, title, target=row.target)


# --- the processes: a rank of a team, and a rank of bare gRPC --------------------------------
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


def bare(rank: int, size: int) -> None:
    """Be a rank of bare gRPC: send the array to all others, in a unary call each, and sum in rank order."""
    arrived: dict[int, dict[int, bytes]] = defaultdict(dict)
    changed = threading.Condition()
    puts: list[Any] = []
    numbers = count(1)

    def put(request: bytes, _: grpc.ServicerContext) -> bytes:
        with changed:
            arrived[int.from_bytes(request[:4], "big")][request[4]] = request[5:]
            changed.notify_all()
        return b""

    def connect(ports: list[int]) -> None:
        for port in (each for other, each in enumerate(ports) if other != rank):
            channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
            grpc.channel_ready_future(channel).result(WAIT_SECONDS)
            puts.append(channel.unary_unary("/b/Put"))

    def reduce(size_bytes: int, rounds: int) -> dict[str, Any]:
        mine = np.full(size_bytes // 8, rank + 1.0)

        def call() -> None:
            number = next(numbers)
            payload = number.to_bytes(4, "big") + bytes([rank]) + mine.tobytes()
            calls = [put.future(payload) for put in puts]
            others = arrived[number]
            with changed:
                assert changed.wait_for(lambda: len(others) == size - 1, WAIT_SECONDS)
            del arrived[number]
            total = np.zeros_like(mine)
            for each in range(size):
                total += mine if each == rank else np.frombuffer(others[each])
            for each in calls:
                each.result(WAIT_SECONDS)

        return timed(call, rounds)

    server = grpc.server(ThreadPoolExecutor(size), options=_OPTIONS)
    method: Any = grpc.unary_unary_rpc_method_handler(put)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("b", {"Put": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    serve({"port": lambda: {"port": port}, "connect": connect, "reduce": reduce})
