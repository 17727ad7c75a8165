"""Chaos on a transport: faults between `connect().send` and a `bind` callback, without workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from campaigns.campaign import Action
from campaigns.chaos.chaos import Chaos, proxy
from campaigns.chaos.faults import OF_WAYS, Kind, Targets
from campaigns.chaos.layout import way

from tuplewire_service.testing import eventually

RECEIVERS = {"receiver-0": (10, 11), "receiver-1": (12, 13)}
_OF_PROGRAMS = {
    Kind.STOP_PRODUCER: 2,
    Kind.STOP_CONSUMER: 2,
    Kind.KILL_PRODUCER: 2,
    Kind.KILL_CONSUMER: 2,
    Kind.RESTART_CONSUMER: 2,
}
_START_SECONDS = 30.0
_END_SECONDS = 90.0


class TransportChaos(Chaos):
    """A run over one transport, without workers."""

    modes: Mapping[str, str] = {"sender-0": "queued", "sender-1": "processed", "sender-2": "queued"}
    targets = Targets(
        [way(sender, receiver) for sender in modes for receiver in RECEIVERS], list(modes), list(RECEIVERS)
    )

    @property
    def weights(self) -> Mapping[Kind, int]:
        return _OF_PROGRAMS if self.transport == "local" else {**OF_WAYS, **_OF_PROGRAMS}

    def open(self, stack: ExitStack) -> None:
        self._killed: set[Path] = set()
        """The journals of senders that were killed."""
        ports = {name: self.directory / f"{name}.port" for name in RECEIVERS}
        for name, file in ports.items():
            self.launch(stack, name, {"role": "receiver", "port_file": str(file)})
        for name, file in ports.items():
            eventually(file.exists, _START_SECONDS, f"{name} is bound")
        reached = {
            (sender, receiver): f"127.0.0.1:{file.read_text()}"
            for sender in self.modes
            for receiver, file in ports.items()
        }
        if self.transport != "local":
            self.proxies = {way(*ends): proxy(stack, address) for ends, address in reached.items()}
            reached = {ends: self.proxies[way(*ends)].address for ends in reached}
        for source, (sender, mode) in enumerate(self.modes.items()):
            receivers: Sequence[Any] = [
                [int(reached[sender, receiver].rpartition(":")[2]), tasks]
                for receiver, tasks in RECEIVERS.items()
            ]
            config = {"role": "sender", "source": source, "mode": mode, "worker": ""}
            self.launch(stack, sender, {**config, "receivers": receivers})

    def act(self, action: Action) -> None:
        match action.kind:
            case Kind.KILL_PRODUCER:
                program = self.programs[action.target]
                program.kill()
                self._killed.update(program.journals())
                program.start()
            case Kind.KILL_CONSUMER | Kind.RESTART_CONSUMER:
                killed = action.kind == Kind.KILL_CONSUMER
                if killed:
                    self.programs[action.target].kill()
                else:
                    self.end([action.target], time.monotonic() + _END_SECONDS)
                self.journal.write("worker_ended", worker=action.target, killed=killed)
                self.stop.wait(action.seconds)
                self.programs[action.target].start()
            case _:
                super().act(action)

    def finish(self) -> None:
        """Stop the senders, which wait until all messages are settled, and then the receivers."""
        for names in (self.modes, RECEIVERS):
            self.end(list(names), time.monotonic() + _END_SECONDS)
        self.judge(self._killed)
