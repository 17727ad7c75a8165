"""Chaos on a transport: random faults between `connect().send` and a `bind` callback.

Senders and receivers are processes. Connections between them are cut, delayed and silenced, processes are
stopped, killed and restarted. The transport `local` has neither connections nor processes: its senders and
receivers are stopped, aborted and closed within one process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from campaigns.campaign import Action
from campaigns.chaos.chaos import Chaos
from campaigns.chaos.ends import ENDS
from campaigns.chaos.faults import OF_WAYS, Kind, Targets
from campaigns.chaos.layout import way
from campaigns.chaos.network import LATENCY_SECONDS
from campaigns.programs import Program

from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

RECEIVERS = {"receiver-0": (10, 11), "receiver-1": (12, 13)}
_WEIGHTS = {
    Kind.CUT: 4,
    Kind.BLACK_HOLE: 3,
    Kind.DELAY: 2,
    Kind.THROTTLE: 2,
    Kind.HALF_OPEN: 3,
    Kind.STOP_PRODUCER: 2,
    Kind.STOP_CONSUMER: 2,
    Kind.KILL_PRODUCER: 2,
    Kind.KILL_CONSUMER: 2,
    Kind.RESTART_CONSUMER: 2,
}
_START_SECONDS = 30.0
_END_SECONDS = 90.0


class Life(Protocol):
    """A sender or receiver through all its lives: a process, or an object of this one."""

    def signal(self, number: signal.Signals, /) -> None:
        """Stop it, or let it continue."""

    def kill(self) -> None:
        """End it at once."""

    def start(self) -> None:
        """Begin its next life."""

    def end(self, timeout: float, /) -> int:
        """End it cleanly; return its exit code."""

    def journals(self) -> list[Path]:
        """Return the journals of all its lives."""


class Within:
    """A sender or receiver within this process, see Life."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self._name = name
        self._config = config
        self._journals: list[Path] = []
        self.start()

    def start(self) -> None:
        """See Life."""
        life = f"{self._name}.{len(self._journals) + 1}"
        self._journals.append(Path(self._config["directory"]) / f"{life}.jsonl")
        self._end = ENDS[self._config["role"]](
            {**self._config, "name": life, "journal": str(self._journals[-1])}
        )

    def signal(self, number: signal.Signals) -> None:
        """See Life."""
        (self._end.pause if number is signal.SIGSTOP else self._end.go_on)()

    def kill(self) -> None:
        """See Life."""
        self._end.kill()

    def end(self, timeout: float) -> int:
        """See Life."""
        del timeout  # it has its own
        return self._end.finish()

    def journals(self) -> list[Path]:
        """See Life."""
        return self._journals


class TransportChaos(Chaos):
    """A run over one transport, without workers."""

    modes: Mapping[str, str] = {"sender-0": "queued", "sender-1": "processed", "sender-2": "queued"}
    targets = Targets(
        [way(sender, receiver) for sender in modes for receiver in RECEIVERS], list(modes), list(RECEIVERS)
    )

    @property
    def weights(self) -> Mapping[Kind, int]:
        """See Chaos."""
        local = self.transport == "local"
        return {kind: weight for kind, weight in _WEIGHTS.items() if not (local and kind in OF_WAYS)}

    def open(self, stack: ExitStack) -> None:
        """See Campaign."""
        self._ends: dict[str, Life] = {}
        self._proxies: dict[str, FaultProxy] = {}
        self._killed: set[Path] = set()
        """The journals of senders that were killed."""
        stack.callback(self._abort)
        ports = {name: self.directory / f"{name}.port" for name in RECEIVERS}
        for name in RECEIVERS:
            self._launch("receiver", name, {"port_file": str(ports[name])})
        for receiver, file in ports.items():
            eventually(file.exists, _START_SECONDS, f"{receiver} is bound")
            for sender in self.modes if self.transport != "local" else ():
                proxy = stack.enter_context(FaultProxy(f"127.0.0.1:{int(file.read_text())}"))
                proxy.delay(LATENCY_SECONDS)
                self._proxies[way(sender, receiver)] = proxy

        def port(sender: str, receiver: str) -> int:
            proxy = self._proxies.get(way(sender, receiver))
            return int(proxy.address.rpartition(":")[2] if proxy else ports[receiver].read_text())

        for source, (sender, mode) in enumerate(self.modes.items()):
            receivers: Sequence[Any] = [[port(sender, each), tasks] for each, tasks in RECEIVERS.items()]
            self._launch(
                "sender", sender, {"source": source, "mode": mode, "worker": "", "receivers": receivers}
            )

    def _launch(self, role: str, name: str, config: dict[str, Any]) -> None:
        common = {"role": role, "transport": self.transport, "seed": self.seed, "rate": self.rate}
        config = {**config, **common, "directory": str(self.directory)}
        self._ends[name] = (
            Within(name, config)
            if self.transport == "local"
            else Program("campaigns.chaos.ends", name, config, self.directory)
        )

    def act(self, action: Action) -> None:
        """See Campaign."""
        target = action.target
        match action.kind:
            case Kind.STOP_PRODUCER | Kind.STOP_CONSUMER:
                self.suspend(self._ends[target], action.seconds)
            case Kind.KILL_PRODUCER:
                self._ends[target].kill()
                self._killed.update(self._ends[target].journals())
                self._ends[target].start()
            case Kind.KILL_CONSUMER | Kind.RESTART_CONSUMER:
                killed = action.kind == Kind.KILL_CONSUMER
                if killed:
                    self._ends[target].kill()
                elif code := self._ends[target].end(_END_SECONDS):
                    self.faults.append(f"{target} was closed and has exited with code {code}")
                self.journal.write("worker_ended", worker=target, killed=killed)
                self.stop.wait(action.seconds)
                self._ends[target].start()
            case _:
                self.disturb(self._proxies[target], action)

    def finish(self) -> None:
        """See Campaign: end the senders, which wait until all is settled, then the receivers."""
        codes: dict[str, int] = {}

        def end(name: str) -> None:
            codes[name] = self._ends[name].end(_END_SECONDS)

        threads = [threading.Thread(target=end, args=(name,)) for name in self.modes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        codes |= {name: self._ends[name].end(_END_SECONDS) for name in RECEIVERS}
        self.faults += (f"{name} has exited with code {code}" for name, code in codes.items() if code)
        self.judge(self._ends, self._killed)

    def _abort(self) -> None:
        for end in self._ends.values():
            if isinstance(end, Program):
                end.kill()
