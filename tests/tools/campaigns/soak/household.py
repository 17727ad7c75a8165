"""A process with several programs: runs the household from its standard input, and reports each program."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import queue
import select
import signal
import sys
import threading
from dataclasses import asdict

from campaigns.soak.lives import Ending, Errand, Household, Life, Told
from helpers.streams import numbered_group
from helpers.topology import TOPOLOGY

from tuplewire import Client, TaskMessageBatch, aio
from tuplewire.errors import RefusedError, RefusedMessagesError, TuplewireError
from tuplewire.session.ledger import DropReason
from tuplewire.settings.config import AckMode

_THREADS = 3
_WAIT_SECONDS = 60.0
_LISTEN_SECONDS = 0.05
_BATCHES = 3


def main() -> None:
    """Run the household."""
    household: Household = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the campaign
    clients: queue.SimpleQueue[Life] = queue.SimpleQueue()
    for life in household.clients:
        clients.put(life)
    threads = [threading.Thread(target=_live_clients, args=(clients,)) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for life in household.forks:
        if _fork(life):
            break  # the child: it exits on its own, with Python's usual cleanup
    else:
        for thread in threads:
            thread.join()
        _live_to_the_end(household.itself)


def _tell(told: Told) -> None:
    os.write(sys.stdout.fileno(), json.dumps(asdict(told)).encode() + b"\n")


def _live_clients(lives: queue.SimpleQueue[Life]) -> None:
    while True:
        try:
            life = lives.get_nowait()
        except queue.Empty:
            return
        told = Told(life.source)
        try:
            client = _client_of(life)
            _errand(client, life, told)
            _end_client(client, life, told)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run reads it
            told.error = f"{life}: {error!r}"
        _tell(told)


def _client_of(life: Life) -> Client:
    return Client(
        life.address,
        topology="elsewhere" if life.errand is Errand.OTHER_TOPOLOGY else TOPOLOGY,
        source=life.source,
        ack_mode=_mode(life),
    )


def _mode(life: Life) -> AckMode:
    return AckMode.PROCESSED if life.processed else AckMode.QUEUED


def _end_client(client: Client, life: Life, told: Told) -> None:
    """Close it, or flush it and keep it, or just keep it; the caller drops it."""
    if life.ending is Ending.CLOSE:
        client.close()
        told.owed = not client.ledger().dropped.get(DropReason.CLOSED)
    elif life.ending is Ending.FLUSH and life.errand is Errand.SEND:
        client.flush(_WAIT_SECONDS)
        told.owed = True
    else:
        told.dropped = True


def _errand(client: Client, life: Life, told: Told) -> None:
    if life.errand is Errand.SEND:
        told.sent = dict.fromkeys(life.tasks, life.messages)
        for batch in _batches(life):
            client.send(batch)
    elif life.errand is Errand.LISTEN:
        _listen(client, life.tasks)
    else:
        _be_refused(client, life)


def _batches(life: Life) -> list[TaskMessageBatch]:
    """Return a program's messages, in a few batches."""
    step = -(-life.messages // _BATCHES)
    return [
        TaskMessageBatch.from_groups(
            [
                numbered_group(task, life.source, first, min(step, life.messages - first), life.size)
                for task in life.tasks
            ]
        )
        for first in range(0, life.messages, step)
    ]


def _listen(client: Client, tasks: tuple[int, ...]) -> None:
    """Subscribe to a task without messages; it may be elsewhere, or another program takes it over."""
    subscription = client.recv(tasks, timeout=_LISTEN_SECONDS)
    try:
        next(subscription)
    except (TimeoutError, TuplewireError):
        return
    raise AssertionError("a message arrived that was never sent")


def _be_refused(client: Client, life: Life) -> None:
    expected = RefusedMessagesError if life.errand is Errand.UNKNOWN_TASK else RefusedError
    try:
        client.send(life.tasks[0], b"unwanted")
        client.flush(_WAIT_SECONDS)
    except expected:
        return
    raise AssertionError(f"not refused: {life.errand}")


def _fork(life: Life) -> bool:
    """Run a program in a fork, and wait for its exit; return True in the child, which has finished."""
    child = os.fork()
    if not child:
        _live_to_the_end(life)
        return True
    end = os.pidfd_open(child)
    try:
        if not select.select([end], [], [], 2 * _WAIT_SECONDS)[0]:
            _tell(Told(life.source, error=f"{life}: the fork has not ended"))
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(end)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != exit_code_of(life):
        _tell(Told(life.source, error=f"{life}: the fork has ended with {code}"))
    return False


def exit_code_of(life: Life) -> int:
    """Return the exit code of a process that runs this program."""
    return {Ending.KILL: -signal.SIGKILL, Ending.TERM: -signal.SIGTERM}.get(life.ending, 0)


_left: list[Client | aio.Client] = []
"""The open clients of a process at its exit."""


def _live_to_the_end(life: Life) -> None:
    """Run a program that has a whole process; return if only Python's own exit remains."""
    told = Told(life.source)
    try:
        if life.aio:
            asyncio.run(_live_aio(life, told))
        else:
            client = _client_of(life)
            _errand(client, life, told)
            _end_process(client, life, told)
            if life.ending is not Ending.DEL:
                _left.append(client)
    except Exception as error:  # noqa: BLE001 - as above
        told.error = f"{life}: {error!r}"
    _tell(told)
    _end_hard(life)


def _end_process(client: Client, life: Life, told: Told) -> None:
    if not life.ending.hard:
        _end_client(client, life, told)
    elif life.flushed and life.errand is Errand.SEND:
        client.flush(_WAIT_SECONDS)
        told.owed = True


async def _live_aio(life: Life, told: Told) -> None:
    client = aio.Client(life.address, topology=TOPOLOGY, source=life.source, ack_mode=_mode(life))
    told.sent = dict.fromkeys(life.tasks, life.messages)
    for batch in _batches(life):
        await client.send(batch)
    await client.flush(_WAIT_SECONDS)
    told.owed = True
    if life.ending is Ending.CLOSE:
        await client.close()
    else:
        _left.append(client)


def _end_hard(life: Life) -> None:
    if life.ending is Ending.EXIT:
        sys.exit()
    if life.ending is Ending.EXIT_NOW:
        os._exit(0)
    if life.ending.hard:
        os.kill(os.getpid(), signal.SIGKILL if life.ending is Ending.KILL else signal.SIGTERM)
        signal.pause()


if __name__ == "__main__":
    main()
