"""The links that messages can take, each with its processes, and one trial over a link."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import ours
import peers
from agent import Agent, BenchError, cpu_seconds
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
)

from tuplewire.processes.worker_processes import WorkerProcesses

LinkName = Literal[
    "hop", "chain", "bare", "unbatched", "zmq", "echo", "hop-zmq", "hop-local", "chain-zmq", "wide", "sends",
    "sends-aio", "zmq-frames", "relay", "direct", "storm", "spread", "stopped", "many", "single", "ask",
    "bare-ask", "elsewhere",
]  # fmt: skip
"""A link that messages can take."""
_Role = tuple[Any, ...]
"""The function of a process, and its arguments."""


class _Path(NamedTuple):
    """A link over workers: the tasks of each, a sender at the first, a receiver at the last, and flags."""

    tasks: Sequence[Sequence[int]]
    sender: _Role
    receiver: _Role
    flags: Sequence[str] = ()
    receive_at: int = -1
    """The worker whose address the receiver has."""


_CHAIN_TASKS = [SOURCE_TASK], [DESTINATION_TASK, PACED_TASK]
_WIDE_TASKS = [SOURCE_TASK, *IDLE_TASKS[::2]], [DESTINATION_TASK, PACED_TASK, *IDLE_TASKS[1::2]]
_SPREAD = [SOURCE_TASK], [*SPREAD_TASKS, STOPPED_TASK]
_STREAMS, _SPREAD_STREAMS = (ours.streams_consumer, [DESTINATION_TASK]), (ours.streams_consumer, SPREAD_TASKS)
LEAST_SECONDS = 0.5
"""The minimum length of a trial at a fixed rate."""
_HURRY = ("--drain-seconds=1",)
"""No consumer takes the remaining messages of a stopped task."""
_PATHS: dict[LinkName, _Path] = {
    "sends": _Path([[DESTINATION_TASK]], (ours.sends,), (ours.single_consumer,)),
    "sends-aio": _Path([[DESTINATION_TASK]], (ours.sends_aio,), (ours.single_consumer,)),
    "many": _Path([[DESTINATION_TASK]], (ours.senders, SENDERS), _STREAMS),
    "single": _Path([[DESTINATION_TASK]], (ours.senders, 1), _STREAMS),
    "chain": _Path(_CHAIN_TASKS, (ours.producer,), (ours.consumer,)),
    "chain-zmq": _Path(_CHAIN_TASKS, (ours.producer,), (ours.consumer,), ["--transport=zmq"]),
    "wide": _Path(_WIDE_TASKS, (ours.producer,), (ours.consumer,)),
    "elsewhere": _Path(_CHAIN_TASKS, (ours.producer,), (ours.consumer,), receive_at=0),
    "spread": _Path(_SPREAD, (ours.spread_producer, False), _SPREAD_STREAMS, _HURRY),
    "stopped": _Path(_SPREAD, (ours.spread_producer, True), _SPREAD_STREAMS, _HURRY),
    "ask": _Path(([SOURCE_TASK], [DESTINATION_TASK]), (ours.requester,), (ours.answerer,)),
}


_TITLES: dict[LinkName, str] = {
    "hop": "transport grpc",
    "chain": "gRPC between them, uncut",
    "bare": "bare gRPC, same frames",
    "unbatched": "gRPC, one a frame",
    "zmq": "pyzmq, one a call",
    "zmq-frames": "pyzmq, same frames",
    "relay": "bare gRPC relays, three hops",
    "direct": "bare gRPC, one hop",
    "echo": "bare gRPC, there and back",
    "sends": "the blocking client",
    "storm": "Storm's Netty transport",
    "spread": "the same, none stopped",
    "single": "one sender",
    "bare-ask": "bare gRPC, a call through two relays",
}
"""The links that rows are compared with."""


class Cell(NamedTuple):
    """A measurement of every round, at full speed with a `frame`, at a `rate`, or of some `requests`."""

    link: LinkName
    frame: int = 0
    look: Look = "count"
    rate: int = 0
    stop_seconds: float = 0.0
    requests: int = 0

    @property
    def title(self) -> str:
        """The title as a comparison."""
        return _TITLES[self.link]

    def __str__(self) -> str:
        return f"{self.link}, frames of {self.frame}" if self.frame else self.link


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one trial."""

    messages: int
    seconds: float
    """Time from the first send, or from when it was due, to the last received message."""
    cpu_seconds: Sequence[float] = ()
    """Processor time of each of its processes: the sender, workers or relays, the receiver."""
    nanoseconds: Sequence[int] = field(default=(), repr=False)
    """Each message's time since it was due, at a fixed rate."""
    late: int | None = None
    """Number of messages sent late, at a fixed rate."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpu_microseconds(self) -> list[float]:
        """Processor time of each process per message."""
        return [each / self.messages * 1e6 for each in self.cpu_seconds]


@dataclass(frozen=True, slots=True)
class Link:
    """A sending and a receiving process, and the processes between them."""

    name: str
    sender: Agent
    receiver: Agent
    between: tuple[int, ...] = ()
    """Process ids of the workers, or relays, on the path."""
    address: str = ""
    """Address of the first worker, for monitoring."""

    def trial(self, cell: Cell, seconds: float) -> Trial:
        """Send for `seconds` seconds and wait for all; BenchError unless each message arrives once."""
        if cell.requests:
            nanoseconds = self.sender.ask("ask", requests=cell.requests)["ns"]
            return Trial(cell.requests, sum(nanoseconds) / 1e9, nanoseconds=nanoseconds)
        if cell.rate:
            # A trial with a stop is long enough to include the time after the stop.
            seconds = max(seconds, LEAST_SECONDS, 4 * cell.stop_seconds)
            return self.paced(cell.rate, seconds, cell.stop_seconds)
        return self._run(cell.look, frame=cell.frame, seconds=seconds)

    def check(self, frame: int, messages: int) -> None:
        """Send numbered messages; BenchError unless each arrives once and in order. Also warms up."""
        self._run("order", frame=frame, messages=messages)

    def paced(self, rate: int, seconds: float, stop_seconds: float = 0.0, **how: int) -> Trial:
        """Send at a fixed rate; the receiver may be stopped in the middle. how: for a chain's producer."""
        self.still("latency")
        before = self._cpu_seconds()
        with self._stopped(seconds / 2, stop_seconds):
            sent = self.sender.ask("pace", rate=rate, seconds=seconds, **how)
        got = self._finish(sent)
        took, used = (got["last_ns"] - sent["start_ns"]) / 1e9, self._cpu_seconds(before)
        return Trial(sent["sent"], took, used, nanoseconds=got["latencies_ns"], late=sent["late"])

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

    def still(self, look: Look = "count") -> None:
        """Begin a trial; BenchError if messages have arrived since the last one."""
        if extra := self.receiver.ask("begin", look=look)["extra"]:
            raise BenchError(f"{self.name}: {extra} messages came that were not sent")

    def _finish(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        got = self.receiver.ask("finish", expected=sent["sent"])
        if lost := sent["sent"] - got["received"]:
            kind = "lost" if lost > 0 else "doubled"
            raise BenchError(f"{self.name}: {sent['sent']} messages sent, {abs(lost)} of them {kind}")
        return got

    def _run(self, look: Look, **request: Any) -> Trial:
        self.still(look)
        before = self._cpu_seconds()
        sent = self.sender.ask("load", **request)
        got = self._finish(sent)
        settled = self.sender.ask("settle")
        used = self._cpu_seconds(before)
        if got["disorder"]:
            raise BenchError(f"{self.name}: {got['disorder']} of {sent['sent']} messages out of order")
        if settled["pending"] or settled.get("dropped") or not settled.get("balanced", True):
            raise BenchError(f"{self.name}: all has arrived, but the sender's books say {settled}")
        return Trial(sent["sent"], (got["last_ns"] - sent["start_ns"]) / 1e9, used)

    def _cpu_seconds(self, before: Sequence[float] = (0.0,) * 9) -> list[float]:
        processes = dict.fromkeys((self.sender.pid, *self.between, self.receiver.pid))
        return [cpu_seconds(each) - then for each, then in zip(processes, before, strict=False)]


class Links:
    """Starts each link at its first use, and closes all links at the end of the block."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._links: dict[str, Link] = {}
        self._servers: dict[tuple[Any, ...], Agent] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: LinkName) -> Link:
        if name not in self._links:
            self._links[name] = self._start(name)
        return self._links[name]

    def still(self) -> None:
        """BenchError if a message has arrived after its trial."""
        for link in self._links.values():
            if link.name not in {"ask", "bare-ask"}:
                link.still()

    def agent(self, role: Callable[..., None] | Sequence[str], *arguments: Any) -> Agent:
        """Start a process."""
        return self._stack.enter_context(Agent(role, *arguments))

    def _server(self, *role: Any) -> tuple[Agent, int]:
        """Return a peer's receiving process, which all links share, and its port."""
        if role not in self._servers:
            self._servers[role] = self.agent(*role)
        return self._servers[role], self._servers[role].ask("port")["port"]

    def _start(self, name: LinkName) -> Link:
        if name in _PATHS:
            return self._path(name, _PATHS[name])
        if name == "hop-local":
            both = self.agent(ours.hop_within, "local")
            return Link(name, both, both)
        if name in {"hop", "hop-zmq"}:
            transport = "grpc" if name == "hop" else "zmq"
            server, port = self._server(ours.hop_server, transport)
            return Link(name, self.agent(ours.hop_client, port, transport), server)
        return self._peer(name)

    def _path(self, name: LinkName, path: _Path) -> Link:
        workers = self._stack.enter_context(WorkerProcesses(len(path.tasks), TOPOLOGY, flags=path.flags))
        workers.assign(dict(enumerate(path.tasks)))
        near, at = workers.endpoints[0], workers.endpoints[path.receive_at]
        receiver = self.agent(path.receiver[0], at.address, *path.receiver[1:])
        sender = self.agent(path.sender[0], near.address, *path.sender[1:])
        between = tuple(each.process_id for each in workers.endpoints)
        return Link(name, sender, receiver, between, near.address)

    def _peer(self, name: LinkName) -> Link:
        if name in {"zmq", "zmq-frames"}:
            server, port = self._server(peers.zmq_pull, name == "zmq-frames")
            return Link(name, self.agent(peers.zmq_push, port, name == "zmq-frames"), server)
        server, port = self._server(peers.grpc_server)
        if name in {"bare", "unbatched"}:
            return Link(name, self.agent(peers.grpc_client, port, name == "bare"), server)
        if name == "echo":
            both = self.agent(peers.grpc_echo, port)
            return Link(name, both, both)
        relays = []
        for _ in range(0 if name == "direct" else 2):
            relays.append(self.agent(peers.grpc_relay, port))
            port = relays[-1].ask("port")["port"]
        sender = self.agent(peers.grpc_requester if name == "bare-ask" else peers.grpc_pace, port)
        return Link(name, sender, server, tuple(relay.pid for relay in relays))
