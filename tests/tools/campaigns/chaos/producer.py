"""A producer of a chaos run, a process of its own: sends until its standard input ends, then flushes.

Exit status: 0 when everything it has sent was settled in time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from campaigns.chaos.journal import Journal
from campaigns.chaos.payload import messages

from tuplewire import Client, TaskGroup, TaskMessageBatch
from tuplewire.errors import BufferFullError, FlushTimeoutError, RefusedMessagesError

_ROOM_SECONDS = 0.5
_BATCH_MESSAGES = 100


def _ends(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def _send(client: Client, batch: TaskMessageBatch, stop: threading.Event) -> bool:
    """Send as soon as there is room; False when the run ends first."""
    while not stop.is_set():
        try:
            client.send(batch, timeout=_ROOM_SECONDS)
        except BufferFullError:
            continue
        return True
    return False


def produce(config: dict[str, Any]) -> int:
    """Send batches to random tasks, note what was sent, and return the exit status."""
    stop = threading.Event()
    threading.Thread(target=_ends, args=(stop,), daemon=True).start()
    chance = random.Random(config["seed"])
    source, tasks = config["source"], config["tasks"]
    journal = Journal(Path(config["journal"]))
    sent: Counter[int] = Counter()
    client = Client(config["address"], topology=config["topology"], source=source, ack_mode=config["mode"])
    while not stop.is_set():
        task, count = chance.choice(tasks), chance.randint(1, _BATCH_MESSAGES)
        batch = TaskMessageBatch.from_groups(
            [TaskGroup.of(task, messages(source, task, sent[task], count), source)]
        )
        journal.write("handed_over", source=source, task=task, count=sent[task] + count)
        if _send(client, batch, stop):
            sent[task] += count
            journal.write("accepted", source=source, task=task, count=sent[task])
        stop.wait(2 * chance.random() * count / config["rate"])
    status = 0
    try:
        client.flush(config["flush_seconds"])
    except (FlushTimeoutError, RefusedMessagesError) as error:
        print(error, file=sys.stderr)
        status = 1
    journal.write("settled", source=source, ledger=dataclasses.asdict(client.ledger()))
    with contextlib.suppress(FlushTimeoutError):
        client.close(1.0)
    return status


if __name__ == "__main__":
    sys.exit(produce(json.loads(sys.argv[1])))
