"""The attacking process: threads with one connection each, which run one attack after another."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import grpc
from campaigns.fuzz.conversation import Conversation, complaint, hold
from campaigns.fuzz.garbage import garbage
from campaigns.fuzz.misuse import misuse
from campaigns.fuzz.refused import refused
from campaigns.fuzz.wire import Wire
from helpers.hostile import OPTIONS, SEND, frame, hello
from helpers.program import Threads, serve

from tuplewire import Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnreachableError

WIRE, FOREIGN = "wire", "foreign certificate"
_ATTACKS_PER_CONNECTION = 50
_MOST_COMPLAINTS = 20
_UNKNOWN_TASKS = range(900, 1000)


def _unwanted(rng: random.Random) -> Conversation:
    """Return a call that a worker of any topology must reject, or a send to a task that does not exist."""
    dice = rng.random()
    if dice < 0.4:
        return refused(rng)
    if dice < 0.7:
        return garbage(rng)
    unknown = frame(1, (b"unwanted",) * 3, rng.choice(_UNKNOWN_TASKS))
    return Conversation(SEND, (hello(), unknown), broken_off=rng.random() < 0.3)


SPEECH: dict[str, Callable[[random.Random], Conversation]] = {
    "garbage": garbage,
    "misuse": misuse,
    "refused": refused,
    "unwanted": _unwanted,
}


@dataclass(frozen=True, slots=True)
class Attacker:
    """One thread of attacks: on a level of SPEECH at one address, or WIRE bytes, or FOREIGN certificates."""

    level: str
    number: int
    addresses: Sequence[str]
    pause: float = 0.0
    foreign: Credentials | None = None


@dataclass(slots=True)
class Tally:
    """The results of attacks so far."""

    counts: Counter[str] = field(default_factory=Counter)
    """The number of occurrences of each answer; below gRPC, of each kind of attack."""
    complaints: list[str] = field(default_factory=list)
    """The first wrong answers, each with its level, thread, number and conversation."""


Attack = Callable[[random.Random], tuple[str, str]]
"""Runs one attack; returns the answer, and the complaint about it, if any."""


def attackers(pipe: Connection, seed: int, crew: Sequence[Attacker], most: int | None) -> None:
    """Attack until the end. Answers `rest`, `go` and `finish` with the tally. most: attacks of a thread."""
    threads = Threads()
    tally, lock = Tally(), threading.Lock()
    going = threading.Event()
    going.set()
    busy = [threading.Lock() for _ in crew]

    def note(each: Attacker, number: int, answer: str, wrong: str) -> None:
        with lock:
            tally.counts[answer] += 1
            if wrong and len(tally.complaints) < _MOST_COMPLAINTS:
                tally.complaints.append(f"{each.level}/{each.number}/{number}: {wrong}")

    def attack_all(each: Attacker, connected: threading.Lock) -> None:
        numbers = itertools.count() if most is None else iter(range(most))
        while going.wait() and not threads.stop.is_set():
            with connected, ExitStack() as opened:
                attack = _connect(each, opened)
                some = list(itertools.islice(numbers, _ATTACKS_PER_CONNECTION))
                if not some:
                    return
                for number in some:
                    if not going.is_set() or threads.stop.wait(each.pause):
                        break
                    note(each, number, *attack(random.Random(f"{seed}/{each.level}/{each.number}/{number}")))

    def progress() -> Tally:
        with lock:
            return Tally(Counter(tally.counts), list(tally.complaints))

    def rest() -> Tally:
        going.clear()
        for each in busy:
            with each:
                pass
        return progress()

    def go() -> Tally:
        going.set()
        return progress()

    def finish() -> Tally:
        going.set()
        threads.end()
        return progress()

    for each, connected in zip(crew, busy, strict=True):
        threads.start(attack_all, each, connected)
    serve(pipe, {"progress": progress, "rest": rest, "go": go, "finish": finish}, threads.errors)
    finish()


def _connect(attacker: Attacker, opened: ExitStack) -> Attack:
    if attacker.level == WIRE:
        wire = opened.enter_context(Wire(list(attacker.addresses)))
        return lambda rng: (wire.attack(rng), "")
    if attacker.level == FOREIGN:
        return lambda rng: _intrude(rng.choice(attacker.addresses), attacker.foreign)
    (address,) = attacker.addresses
    channel = opened.enter_context(grpc.insecure_channel(address, options=OPTIONS))

    def talk(rng: random.Random) -> tuple[str, str]:
        conversation = SPEECH[attacker.level](rng)
        answer = hold(channel, conversation)
        wrong = complaint(conversation, answer)
        return answer.error or answer.status.name, wrong and f"{wrong}; said was {conversation}"

    return talk


def _intrude(address: str, foreign: Credentials | None) -> tuple[str, str]:
    try:
        with ControlClient(address, credentials=foreign) as control:
            control.status()
    except UnreachableError:
        return FOREIGN, ""
    return FOREIGN, "a worker has answered a foreign certificate"
