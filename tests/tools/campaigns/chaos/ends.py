"""The two ends of a transport in a chaos run: who binds and notes what comes, who connects and sends.

Each is a process of its own, which ends in good order when its standard input does; or, for a transport
within one process, an object that can be stopped, killed and ended like one.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from pathlib import Path
from typing import Any

from campaigns.chaos.journal import Journal
from campaigns.chaos.payload import messages, runs

from tuplewire import TaskGroup, TaskMessageBatch
from tuplewire.errors import BufferFullError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.config import AckMode, SessionSettings
from tuplewire_service.messaging.base import IConnectionCallback, IContext, InboundSession, ReceivedBatch
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory

TOPOLOGY = "chaos"
SOURCES_APART = 1000
"""Each life of a sender is a source of its own: the name of the first, plus so much for each life."""
_ROOM_SECONDS = 0.2
_BATCH_MESSAGES = 100
_WINDOW_MESSAGES = 2000
_RELEASE_SECONDS = 0.002
_END_SECONDS = 60.0


def _context(config: dict[str, Any], **session: Any) -> IContext:
    settings = SessionSettings.of(**session)
    return TransportFactory.make_context(
        {
            TRANSPORT_KEY: config["transport"],
            **settings.conf(),
            "tuplewire.transport.receive_messages": _WINDOW_MESSAGES,
        }
    )


class End(ABC):
    """What both have in common. config: what the run tells it; name: with the number of its life."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.name: str = config["name"]
        self._journal = Journal(Path(config["journal"]))
        self._over = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._thread = threading.Thread(target=self._run, name=self.name)

    @abstractmethod
    def _run(self) -> None:
        """Do what it does, until it is over."""

    def pause(self) -> None:
        """Do nothing for a while, where it is no process that could be stopped."""
        self._going.clear()

    def go_on(self) -> None:
        """Go on."""
        self._going.set()

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""

    @abstractmethod
    def finish(self) -> int:
        """End it in good order; return what its exit status would be."""

    def _stop(self) -> None:
        self._over.set()
        self._going.set()
        self._thread.join()


class Receiving(End, IConnectionCallback):
    """Binds; notes what comes before it is acknowledged, and is done with it a moment later."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._held: deque[tuple[InboundSession, TaskGroup]] = deque()
        port_file = Path(config["port_file"])
        self._context = _context(config)
        self._server = self._context.bind(
            TOPOLOGY, int(port_file.read_text()) if port_file.exists() else 0, self
        )
        temporary = port_file.with_suffix(".new")
        temporary.write_text(str(self._server.port))
        temporary.replace(port_file)
        self._thread.start()

    def recv(self, batch: ReceivedBatch) -> None:
        """Note what has come."""
        batch.hold()
        for group in batch.groups:
            for first, count in runs(group):
                self._journal.write(
                    "received",
                    source=group.source,
                    task=group.task,
                    first=first,
                    count=count,
                    subscription=self.name,
                    redelivered=group.redelivered,
                )
            self._held.append((batch.inbound, group))

    def _run(self) -> None:
        while not self._over.wait(_RELEASE_SECONDS):
            self._going.wait()
            self._release()

    def _release(self) -> None:
        while self._held:
            inbound, group = self._held.popleft()
            inbound.release(group.task, len(group), len(group.data))

    def kill(self) -> None:
        """See End."""
        self._server.abort()
        self._stop()
        self._release()  # only a process dies with what it holds
        self._journal.close()

    def finish(self) -> int:
        """See End: between processes, what is not released by then is sent again, to the next life."""
        self._stop()
        self._context.term()
        self._release()
        self._journal.close()
        return 0


class Sending(End):
    """Connects to every receiver, and sends numbered messages to random tasks."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._source = config["source"] + SOURCES_APART * int(self.name.rpartition(".")[2])
        self._chance = random.Random(f"{config['seed']} {self.name}")
        self._rate: float = config["rate"]
        self._context = _context(config, ack_mode=AckMode(config["mode"]))
        clients = [
            (self._context.connect(TOPOLOGY, "127.0.0.1", port), tasks) for port, tasks in config["receivers"]
        ]
        self._clients = [client for client, _ in clients]
        self._client_of = {task: client for client, tasks in clients for task in tasks}
        # What has come is noted before it is acknowledged: nothing may be missing, in neither mode.
        self._journal.write("source", source=self._source, mode=AckMode.PROCESSED, worker="")
        self._thread.start()

    def _run(self) -> None:
        source, chance = self._source, self._chance
        sent: Counter[int] = Counter()
        tasks = list(self._client_of)
        while not self._over.is_set():
            self._going.wait()
            task, count = chance.choice(tasks), chance.randint(1, _BATCH_MESSAGES)
            group = TaskGroup.of(task, messages(source, task, sent[task], count), source)
            self._journal.write("handed_over", source=source, task=task, count=sent[task] + count)
            if self._sent(task, group):
                sent[task] += count
                self._journal.write("accepted", source=source, task=task, count=sent[task])
            self._over.wait(2 * chance.random() * count / self._rate)

    def _sent(self, task: int, group: TaskGroup) -> bool:
        while not self._over.is_set():
            try:
                self._client_of[task].send(TaskMessageBatch.from_groups([group]), timeout=_ROOM_SECONDS)
            except BufferFullError:
                continue
            return True
        return False

    def kill(self) -> None:
        """See End."""
        self._stop()
        for client in self._clients:
            client.abort()
        self._journal.close()

    def finish(self) -> int:
        """See End: 1 when something is still pending after a minute."""
        self._stop()
        deadline = time.monotonic() + _END_SECONDS
        while (ledger := self._ledger()).pending and time.monotonic() < deadline:
            time.sleep(_RELEASE_SECONDS)
        self._journal.write("settled", source=self._source, ledger=dataclasses.asdict(ledger))
        self._journal.close()
        self._context.term()
        if ledger.pending:
            print(f"not everything was settled: {ledger}", file=sys.stderr)
        return int(bool(ledger.pending))

    def _ledger(self) -> LedgerSnapshot:
        ledgers = [client.statistics().ledger for client in self._clients]
        dropped: Counter[str] = Counter()
        for ledger in ledgers:
            dropped.update(ledger.dropped)
        return LedgerSnapshot(
            sum(ledger.accepted for ledger in ledgers),
            sum(ledger.acknowledged for ledger in ledgers),
            dict(dropped),
            sum(ledger.pending for ledger in ledgers),
        )


ENDS: dict[str, type[End]] = {"receiver": Receiving, "sender": Sending}


def main() -> int:
    """Be one end, as the command line says."""
    config = json.loads(sys.argv[1])
    end = ENDS[config["role"]](config)
    sys.stdin.read()
    return end.finish()


if __name__ == "__main__":
    sys.exit(main())
