"""The processes of the rows of teams: a rank of a team, and a rank of bare gRPC.

Each function is a role of a process; it makes `rounds` calls of a kind, and returns the nanoseconds of each.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import grpc
import numpy as np
from agent import serve
from workload import TOPOLOGY

from tuplewire import Team

_WAIT_SECONDS = 30.0
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


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
            grpc.channel_ready_future(channel).result(_WAIT_SECONDS)
            puts.append(channel.unary_unary("/b/Put"))

    def reduce(size_bytes: int, rounds: int) -> dict[str, Any]:
        mine = np.full(size_bytes // 8, rank + 1.0)

        def call() -> None:
            number = next(numbers)
            payload = number.to_bytes(4, "big") + bytes([rank]) + mine.tobytes()
            calls = [put.future(payload) for put in puts]
            others = arrived[number]
            with changed:
                assert changed.wait_for(lambda: len(others) == size - 1, _WAIT_SECONDS)
            del arrived[number]
            total = np.zeros_like(mine)
            for each in range(size):
                total += mine if each == rank else np.frombuffer(others[each])
            for each in calls:
                each.result(_WAIT_SECONDS)

        return timed(call, rounds)

    server = grpc.server(ThreadPoolExecutor(size), options=_OPTIONS)
    method: Any = grpc.unary_unary_rpc_method_handler(put)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("b", {"Put": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    serve({"port": lambda: {"port": port}, "connect": connect, "reduce": reduce})
