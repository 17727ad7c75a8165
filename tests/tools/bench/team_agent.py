"""The processes of the rows of teams: a rank of a team, and a rank of bare gRPC.

Each role makes `rounds` calls of `barrier` or `reduce`, and returns the nanoseconds of each call.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


class GrpcRank:
    """A rank of bare gRPC: it sends its array to all others, in a unary call each, and sums in rank order."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size, self._round = rank, size, 0
        self._arrived: dict[int, dict[int, bytes]] = defaultdict(dict)
        self._changed = threading.Condition()
        method: Any = grpc.unary_unary_rpc_method_handler(self._put)
        self._server = grpc.server(ThreadPoolExecutor(size), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("b", {"Put": method}),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self._puts: list[Any] = []

    def _put(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        with self._changed:
            self._arrived[int.from_bytes(request[:4], "big")][request[4]] = request[5:]
            self._changed.notify_all()
        return b""

    def port(self) -> dict[str, Any]:
        """Return the port."""
        return {"port": self._port}

    def connect(self, ports: list[int]) -> dict[str, Any]:
        """Connect to the other ranks."""
        for port in (each for rank, each in enumerate(ports) if rank != self._rank):
            channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
            grpc.channel_ready_future(channel).result(_WAIT_SECONDS)
            self._puts.append(channel.unary_unary("/b/Put"))
        return {}

    def reduce(self, size_bytes: int, rounds: int) -> dict[str, Any]:
        """Sum arrays of this size over all ranks."""
        mine = np.full(size_bytes // 8, self._rank + 1.0)

        def call() -> None:
            self._round += 1
            payload = self._round.to_bytes(4, "big") + bytes([self._rank]) + mine.tobytes()
            calls = [put.future(payload) for put in self._puts]
            others = self._arrived[self._round]
            with self._changed:
                assert self._changed.wait_for(lambda: len(others) == self._size - 1, _WAIT_SECONDS)
            del self._arrived[self._round]
            total = np.zeros_like(mine)
            for rank in range(self._size):
                total += mine if rank == self._rank else np.frombuffer(others[rank])
            for each in calls:
                each.result(_WAIT_SECONDS)

        return timed(call, rounds)


def member(address: str, rank: str, size: str) -> None:
    """Role: a rank of a team, which it joins at the first request."""
    teams: dict[str, Team] = {}

    def join() -> dict[str, Any]:
        teams[""] = Team(range(1, int(size) + 1), int(rank), address=address, topology=TOPOLOGY)
        return {}

    def reduce(size_bytes: int, rounds: int) -> dict[str, Any]:
        mine = np.full(size_bytes // 8, int(rank) + 1.0)
        return timed(lambda: teams[""].all_reduce(mine), rounds)

    def pingpong(rounds: int) -> dict[str, Any]:
        def call() -> None:
            if rank == "0":
                teams[""].send(1, b"x" * 1024)
                teams[""].recv(1)
            else:
                teams[""].recv(0)
                teams[""].send(0, b"x" * 1024)

        return timed(call, rounds)

    def barrier(rounds: int) -> dict[str, Any]:
        return timed(teams[""].barrier, rounds)

    serve({"join": join, "barrier": barrier, "reduce": reduce, "pingpong": pingpong})
    teams[""].close()


def bare(rank: str, size: str) -> None:
    """Role: a rank of bare gRPC."""
    own = GrpcRank(int(rank), int(size))
    serve({"port": own.port, "connect": own.connect, "reduce": own.reduce})


ROLES: dict[str, Callable[..., None]] = {"member": member, "bare": bare}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
