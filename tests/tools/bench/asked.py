"""The row of requests: one request at a time and its answer, over two workers and over bare gRPC."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from agent import Agent, BenchError, serve
from peers import OPTIONS, SERVICE, LoopThread, listen
from report import Line, compared, percentile
from workload import DESTINATION_TASK, PACED_BYTES, SOURCE_TASK, TOPOLOGY

from tuplewire.client import Client
from tuplewire.errors import ClosedError
from tuplewire.processes.worker_processes import WorkerProcesses

ASK = "ask"

_ROUNDS = 5
_REQUESTS = 500
_RELAYS = 2
_TARGET = 2.5
_PATH = f"/{SERVICE}/Ask"


def measure_asked(progress: Callable[[str], None]) -> list[Line]:
    """Send requests one at a time through two workers, and through as many relays of bare gRPC, in turns."""
    with contextlib.ExitStack() as stack:

        def agent(role: str, argument: object) -> Agent:
            return stack.enter_context(Agent("asked.py", role, argument))

        workers = stack.enter_context(WorkerProcesses(2, TOPOLOGY))
        workers.assign({0: [SOURCE_TASK], 1: [DESTINATION_TASK]})
        near, far = workers.endpoints
        agent("answerer", far.address)
        port = 0
        for _ in range(_RELAYS + 1):
            port = agent("bare-answerer", port).ask("port")["port"]
        ours, bare = agent("requester", near.address), agent("bare-requester", port)
        rounds = []
        for number in range(_ROUNDS + 1):
            progress(f"requests, round {number} of {_ROUNDS}")
            rounds.append([each.ask("load")["nanoseconds"] for each in (ours, bare)])
    del rounds[0]  # the processes have warmed up
    return [
        compared(
            ASK,
            f"a request of 1 KiB and its answer through two workers: p{percent}",
            "ms",
            [percentile(mine, percent) / 1e6 for mine, _ in rounds],
            "bare gRPC, a call through two relays",
            [percentile(others, percent) / 1e6 for _, others in rounds],
            target=target,
        )
        for percent, target in ((50, _TARGET), (99, None))
    ]


def _load(ask: Callable[[bytes], bytes]) -> dict[str, Any]:
    """Send numbered requests one at a time; BenchError unless each is answered with its own payload."""
    nanoseconds = []
    for number in range(_REQUESTS):
        payload = number.to_bytes(PACED_BYTES, "big")
        began = time.perf_counter_ns()
        answer = ask(payload)
        nanoseconds.append(time.perf_counter_ns() - began)
        if answer != payload:
            raise BenchError(f"request {number} got the answer to another one")
    return {"nanoseconds": nanoseconds}


def requester(address: str) -> None:
    """Role: Asker.ask in a loop."""
    with Client(address, topology=TOPOLOGY) as client, client.asker(SOURCE_TASK) as asker:
        serve({"load": lambda: _load(lambda payload: asker.ask(DESTINATION_TASK, payload).payload)})


def answerer(address: str) -> None:
    """Role: answers each request with its payload."""
    client = Client(address, topology=TOPOLOGY)
    inbox = client.recv([DESTINATION_TASK])

    def answer() -> None:
        with contextlib.suppress(ClosedError):
            for message in inbox.messages():
                client.answer(message, message.payload)

    thread = threading.Thread(target=answer)
    thread.start()
    serve({})
    client.close()
    thread.join()


def bare_requester(port: str) -> None:
    """Role: a unary call in a loop, with gRPC's blocking stub, which has the lower latency."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        ask: Any = channel.unary_unary(_PATH)
        serve({"load": lambda: _load(ask)})


def bare_answerer(port: str) -> None:
    """Role: forwards the bytes of a unary call to the process at `port`; port 0: returns them."""
    loop = LoopThread()

    async def start() -> tuple[grpc.aio.Server, int]:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
        forward: Any = channel.unary_unary(_PATH)

        async def answer(request: bytes, _: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            return request if port == "0" else bytes(await forward(request))

        return await listen({"Ask": grpc.unary_unary_rpc_method_handler(answer)})

    server, listening = loop.run(start())
    serve({"port": lambda: {"port": listening}})
    loop.run(server.stop(None))


ROLES: dict[str, Callable[[str], None]] = {
    "requester": requester,
    "answerer": answerer,
    "bare-requester": bare_requester,
    "bare-answerer": bare_answerer,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2])
