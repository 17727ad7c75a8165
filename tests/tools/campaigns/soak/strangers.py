"""Refused traffic: a process that says what every worker must refuse, all the time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

import grpc
from campaigns.fuzz.conversation import Conversation, complaint, hold
from campaigns.fuzz.garbage import garbage
from campaigns.fuzz.refused import refused
from campaigns.fuzz.wire import Wire
from helpers.hostile import OPTIONS, SEND, frame, hello
from helpers.program import Threads, serve

from tuplewire import Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnreachableError

_PAUSE_SECONDS = 0.05
_INTRUDER_PAUSE_SECONDS = 0.5
_MOST_AT_A_TIME = 50
_MOST_COMPLAINTS = 20
_NOBODYS_TASKS = range(900, 1000)


@dataclass(slots=True)
class Refused:
    """How often each answer came, and what the worker should not have answered, in words."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def complain(self, text: str) -> None:
        """Note a complaint, if it is one of the first."""
        if len(self.complaints) < _MOST_COMPLAINTS:
            self.complaints.append(text)


Act = Callable[[random.Random, Refused], None]
"""Comes once, and is refused."""
Stranger = Callable[[ExitStack], Act]
"""Opens a connection, which the stack closes, and returns what it does there."""


def strangers(
    pipe: Connection,
    seed: int,
    unix_addresses: Sequence[str],
    tcp_addresses: Sequence[str],
    foreign: Credentials,
) -> None:
    """Be a process that is refused, at all of these addresses.

    foreign: a certificate that the workers do not trust. Answers with what was refused so far. `rest`: stop,
    and leave nothing open. `go`: go on.
    """
    threads = Threads()
    so_far = Refused()
    going = threading.Event()
    going.set()
    busy = [threading.Lock() for _ in range(len(unix_addresses) + 2)]

    def keep_coming(number: int, pause: float, stranger: Stranger) -> None:
        chance = random.Random(f"{seed}/{number}")
        while going.wait() and not threads.stop.is_set():
            with busy[number], ExitStack() as opened:
                act = stranger(opened)
                for _ in range(_MOST_AT_A_TIME):
                    if not going.is_set() or threads.stop.wait(pause):
                        break
                    act(chance, so_far)

    def rest() -> Refused:
        going.clear()
        for each in busy:
            with each:
                pass
        return so_far

    def go() -> Refused:
        going.set()
        return so_far

    for number, address in enumerate(unix_addresses):
        threads.start(keep_coming, number, _PAUSE_SECONDS, partial(_speaker, address))
    threads.start(keep_coming, -1, _PAUSE_SECONDS, partial(_thrower, tcp_addresses))
    threads.start(keep_coming, -2, _INTRUDER_PAUSE_SECONDS, partial(_intruder, tcp_addresses, foreign))
    serve(pipe, {"progress": lambda: so_far, "rest": rest, "go": go}, threads.errors)
    threads.stop.set()
    going.set()
    threads.end()


def _speaker(address: str, opened: ExitStack) -> Act:
    """Speak gRPC: malformed, out of order, or to a task or topology that is not there."""
    channel = opened.enter_context(grpc.insecure_channel(address, options=OPTIONS))

    def speak(chance: random.Random, told: Refused) -> None:
        conversation = _conversation(chance)
        answer = hold(channel, conversation)
        told.counts[answer.error or answer.status.name] += 1
        if wrong := complaint(conversation, answer):
            told.complain(f"{wrong}; said was {conversation}")

    return speak


def _conversation(chance: random.Random) -> Conversation:
    dice = chance.random()
    if dice < 0.4:
        return refused(chance)
    if dice < 0.7:
        return garbage(chance)
    unknown = frame(1, (b"unwanted",) * 3, chance.choice(_NOBODYS_TASKS))
    return Conversation(SEND, (hello(), unknown), broken_off=chance.random() < 0.3)


def _thrower(addresses: Sequence[str], opened: ExitStack) -> Act:
    """Throw bytes below gRPC."""
    wire = opened.enter_context(Wire(list(addresses)))

    def throw(chance: random.Random, told: Refused) -> None:
        told.counts[f"wire: {wire.attack(chance)}"] += 1

    return throw


def _intruder(addresses: Sequence[str], foreign: Credentials, _opened: ExitStack) -> Act:
    """Come with a certificate that somebody else has signed."""

    def intrude(chance: random.Random, told: Refused) -> None:
        try:
            with ControlClient(chance.choice(addresses), credentials=foreign) as control:
                control.status()
        except UnreachableError:
            told.counts["foreign certificate"] += 1
        else:
            told.complain("a worker has answered a foreign certificate")

    return intrude
