"""A consumer of a chaos run, a process of its own: follows its tasks from worker to worker.

What has arrived is in the journal before it is acknowledged. Ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from itertools import count
from pathlib import Path
from typing import Any

from campaigns.chaos.journal import Journal
from campaigns.chaos.payload import runs

from tuplewire import Client
from tuplewire.errors import NotLocalError, UnknownTaskError, UnreachableError
from tuplewire.subscription import Subscription

_SILENCE_SECONDS = 1.0
_RETRY_SECONDS = 0.05
_WORK_SECONDS = 0.005
"""What a batch takes, before it is acknowledged: a consumer that dies has nearly always begun one."""


class Consumer:
    """One thread for each task; each asks one worker after the other until it finds its task."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._name: str = config["name"]
        self._tasks: list[int] = config["tasks"]
        self._clients = [
            (worker, Client(address, topology=config["topology"]))
            for worker, address in config["workers"].items()
        ]
        self._journal = Journal(Path(config["journal"]))
        self._stop = threading.Event()
        self._subscriptions = count(1)

    def run(self) -> None:
        """Consume until standard input ends."""
        threads = [threading.Thread(target=self._guarded, args=(task,)) for task in self._tasks]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self._stop.set()
        for thread in threads:
            thread.join()

    def _guarded(self, task: int) -> None:
        try:
            self._consume(task)
        except BaseException:  # noqa: BLE001 - whatever it is ends the process, and the run sees that
            traceback.print_exc()
            os._exit(1)

    def _consume(self, task: int) -> None:
        for attempt in count(task):
            if self._stop.wait(_RETRY_SECONDS):
                return
            worker, client = self._clients[attempt % len(self._clients)]
            name = f"{self._name} at {worker} #{next(self._subscriptions)}"
            try:
                with client.recv([task], timeout=_SILENCE_SECONDS) as subscription:
                    self._journal.write("subscribed", subscription=name)
                    self._read(subscription, name)
            except (NotLocalError, UnknownTaskError, UnreachableError):
                continue

    def _read(self, subscription: Subscription, name: str) -> None:
        while not self._stop.is_set():
            try:
                batch = next(subscription)
            except TimeoutError:
                continue
            for group in batch.groups:
                for first, number in runs(group):
                    self._journal.write(
                        "received",
                        source=group.source,
                        task=group.task,
                        first=first,
                        count=number,
                        subscription=name,
                        redelivered=group.redelivered,
                    )
            self._stop.wait(_WORK_SECONDS)


if __name__ == "__main__":
    Consumer(json.loads(sys.argv[1])).run()
