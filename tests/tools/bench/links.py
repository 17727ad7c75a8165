"""The links that messages can take, each with its processes, and one trial over a link."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agent import Agent, BenchError
from workload import (
    DESTINATION_TASK,
    IDLE_TASKS,
    PACED_TASK,
    SENDERS,
    SOURCE_TASK,
    SPREAD_TASKS,
    STOPPED_TASK,
    TOPOLOGY,
    Look,
    cpu_seconds,
)

from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses

HOP, CHAIN, BARE, UNBATCHED, ZMQ, ECHO = "hop", "chain", "bare", "unbatched", "zmq", "echo"
HOP_ZMQ, HOP_LOCAL, CHAIN_ZMQ, WIDE = "hop-zmq", "hop-local", "chain-zmq", "wide"
SENDS, SENDS_AIO, ZMQ_FRAMES, RELAY, DIRECT = "sends", "sends-aio", "zmq-frames", "relay", "direct"
STORM = "storm"
SPREAD, STOPPED, MANY, SINGLE = "spread", "stopped", "many", "single"

_TRANSPORTS = {HOP: "grpc", HOP_ZMQ: "zmq", HOP_LOCAL: "local"}
_CHAINS = {CHAIN: "grpc", CHAIN_ZMQ: "zmq", WIDE: "grpc"}
_RELAYS = {RELAY: 2, DIRECT: 0}
"""Link of bare gRPC -> number of processes between its ends."""
_HURRY = ("--drain-seconds=1",)
"""No consumer takes the remaining messages of a stopped task."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one trial."""

    messages: int
    seconds: float
    """Time from the first send to the last received message."""
    cpu_seconds: float
    """Processor time of all its processes, including workers."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Latencies:
    """The result of one paced trial."""

    nanoseconds: list[int]
    """Each message's time since it was due."""
    late: int
    """Number of messages sent late."""
    seconds: float = 0.0
    """Time from when the first message was due until the last one arrived."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return len(self.nanoseconds) / self.seconds


@dataclass(frozen=True, slots=True)
class Link:
    """A sending and a receiving process, and the processes between them."""

    name: str
    sender: Agent
    receiver: Agent
    between: tuple[int, ...] = ()
    """Process ids of the workers on the path."""
    address: str = ""
    """Address of the first worker, for monitoring."""

    def trial(self, frame: int, seconds: float, look: Look = "count") -> Trial:
        """Send frames for `seconds` seconds and wait for all; BenchError unless each message arrives once."""
        return self._run(look, verb="load", frame=frame, seconds=seconds)

    def check(self, frame: int, messages: int) -> None:
        """Send numbered messages; BenchError unless each arrives once and in order. Also warms up."""
        self._run("order", verb="load", frame=frame, messages=messages)

    def paced(self, rate: int, seconds: float, stop_seconds: float = 0.0, **how: int) -> Latencies:
        """Send at a fixed rate and return the times at the receiver, which may be stopped in the middle.

        how: arguments for the producer of a chain.
        """
        self._begin("latency")
        with self._stopped(seconds / 2, stop_seconds):
            sent = self.sender.ask("pace", rate=rate, seconds=seconds, **how)
        got = self._finish(sent)
        return Latencies(got["latencies_ns"], sent["late"], (got["last_ns"] - sent["start_ns"]) / 1e9)

    @contextlib.contextmanager
    def _stopped(self, after: float, seconds: float) -> Iterator[None]:
        """Stop the receiving process for `seconds` seconds, after a delay of `after` seconds."""
        changes = [(after, signal.SIGSTOP), (after + seconds, signal.SIGCONT)] if seconds else []
        timers = [threading.Timer(at, os.kill, (self.receiver.pid, number)) for at, number in changes]
        for timer in timers:
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.join()

    def still(self) -> None:
        """BenchError if messages have arrived since the last trial."""
        self._begin("count")

    def _begin(self, look: Look) -> None:
        if extra := self.receiver.ask("begin", look=look)["extra"]:
            raise BenchError(f"{self.name}: {extra} messages came that were not sent")

    def _finish(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        got = self.receiver.ask("finish", expected=sent["sent"])
        if got["received"] != sent["sent"]:
            kind = "lost" if got["received"] < sent["sent"] else "doubled"
            raise BenchError(
                f"{self.name}: sent {sent['sent']}, received {got['received']}: "
                f"{abs(sent['sent'] - got['received'])} messages {kind}"
            )
        return got

    def _run(self, look: Look, **request: Any) -> Trial:
        self._begin(look)
        before = sum(map(cpu_seconds, self.between))
        sent = self.sender.ask(**request)
        got = self._finish(sent)
        settled = self.sender.ask("settle")
        used = sum(map(cpu_seconds, self.between)) - before
        if got["disorder"]:
            raise BenchError(f"{self.name}: {got['disorder']} of {sent['sent']} messages out of order")
        if settled["pending"] or settled.get("dropped") or not settled.get("balanced", True):
            raise BenchError(f"{self.name}: all has arrived, but the sender's books say {settled}")
        return Trial(
            sent["sent"],
            (got["last_ns"] - sent["start_ns"]) / 1e9,
            used + (got["cpu_ns"] + settled["cpu_ns"]) / 1e9,
        )


class Links:
    """Starts each link at its first use, and closes all links at the end of the block."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._links: dict[str, Link] = {}
        self._servers: dict[str, Agent] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Link:
        if name not in self._links:
            self._links[name] = self._start(name)
        return self._links[name]

    def started(self) -> list[Link]:
        """Return the links that are in use."""
        return list(self._links.values())

    def _agent(
        self, script: str, role: str, *arguments: object, runner: Sequence[str] = (sys.executable,)
    ) -> Agent:
        return self._stack.enter_context(Agent(script, role, *arguments, runner=runner))

    def _server(self, role: str, *arguments: str) -> Agent:
        """Return the peers' receiving process of this kind, which all links share."""
        name = " ".join((role, *arguments))
        if name not in self._servers:
            self._servers[name] = self._agent("peers.py", role, *arguments)
        return self._servers[name]

    def _start(self, name: str) -> Link:
        if name in _CHAINS:
            return self._chain(name, _CHAINS[name])
        if name in {SPREAD, STOPPED}:
            return self._spread(name)
        if name in {MANY, SINGLE}:
            return self._senders(name)
        if name in _TRANSPORTS:
            return self._hop(name, _TRANSPORTS[name])
        if name in {SENDS, SENDS_AIO}:
            return self._sends(name)
        if name in _RELAYS:
            return self._relays(name, _RELAYS[name])
        if name == ECHO:
            both = self._agent("peers.py", "grpc-echo", self._server("grpc-server").ask("port")["port"])
            return Link(name, both, both)
        kind = "messages" if name in {UNBATCHED, ZMQ} else "frames"
        if name in {BARE, UNBATCHED}:
            server, role = self._server("grpc-server"), "grpc-client"
        else:
            server, role = self._server("zmq-pull", kind), "zmq-push"
        return Link(name, self._agent("peers.py", role, server.ask("port")["port"], kind), server)

    def _relays(self, name: str, count: int) -> Link:
        sink = self._server("grpc-server")
        port = sink.ask("port")["port"]
        relays = []
        for _ in range(count):
            relays.append(self._agent("peers.py", "grpc-relay", port))
            port = relays[-1].ask("port")["port"]
        sender = self._agent("peers.py", "grpc-pace", port)
        return Link(name, sender, sink, tuple(relay.pid for relay in relays))

    def _workers(self, *shares: Sequence[int], flags: Sequence[str] = ()) -> Sequence[Endpoint]:
        """Start a worker for each share of tasks."""
        processes = WorkerProcesses(count=len(shares), topology=TOPOLOGY, flags=flags)
        workers = self._stack.enter_context(processes)
        workers.assign(dict(enumerate(shares)))
        return workers.endpoints

    def _sends(self, name: str) -> Link:
        (worker,) = self._workers([DESTINATION_TASK])
        consumer = self._agent("sends.py", "consumer", worker.address)
        sender = self._agent("sends.py", name, worker.address)
        return Link(name, sender, consumer, (worker.process_id,))

    def _hop(self, name: str, transport: str) -> Link:
        if transport == "local":
            both = self._agent("ours.py", "hop-within", transport)
            return Link(name, both, both)
        server = self._agent("ours.py", "hop-server", transport)
        port = server.ask("port")["port"]
        return Link(name, self._agent("ours.py", "hop-client", port, transport), server)

    def _chain(self, name: str, transport: str) -> Link:
        idle = IDLE_TASKS if name == WIDE else ()
        shares = [SOURCE_TASK, *idle[::2]], [DESTINATION_TASK, PACED_TASK, *idle[1::2]]
        near, far = self._workers(*shares, flags=[f"--transport={transport}"])
        consumer = self._agent("ours.py", "consumer", far.address)
        producer = self._agent("ours.py", "producer", near.address)
        return Link(name, producer, consumer, (near.process_id, far.process_id), near.address)

    def _spread(self, name: str) -> Link:
        near, far = self._workers([SOURCE_TASK], [*SPREAD_TASKS, STOPPED_TASK], flags=_HURRY)
        consumer = self._agent("many.py", "streams-consumer", far.address, *SPREAD_TASKS)
        stopped = "yes" if name == STOPPED else "no"
        producer = self._agent("many.py", "spread-producer", near.address, stopped)
        return Link(name, producer, consumer, (near.process_id, far.process_id))

    def _senders(self, name: str) -> Link:
        (worker,) = self._workers([DESTINATION_TASK])
        consumer = self._agent("many.py", "streams-consumer", worker.address, DESTINATION_TASK)
        sender = self._agent("many.py", "senders", worker.address, SENDERS if name == MANY else 1)
        return Link(name, sender, consumer, (worker.process_id,))
