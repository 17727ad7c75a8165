"""The process that attacks: threads with a connection each, one conversation after the other."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import grpc
from campaigns.fuzz.conversation import Conversation, complaint, hold
from campaigns.fuzz.garbage import garbage
from campaigns.fuzz.misuse import misuse
from campaigns.fuzz.refused import refused
from campaigns.fuzz.wire import Wire
from helpers.hostile import OPTIONS, Answer
from helpers.program import Threads, serve

SPEECH: dict[str, Callable[[random.Random], Conversation]] = {
    "garbage": garbage,
    "misuse": misuse,
    "refused": refused,
}
WIRE = "wire"
THREADS = {WIRE: 2, "garbage": 2, "misuse": 2, "refused": 1}
"""How many connections attack with bytes below gRPC; with gRPC messages of random bytes; with well-formed
messages that make no sense; with what has one right answer."""
_CALLS_PER_CONNECTION = 200
_MOST_COMPLAINTS = 20


@dataclass(slots=True)
class Tally:
    """What an attacker has done, and what it got."""

    counts: Counter[str] = field(default_factory=Counter)
    """How often it got each answer; below gRPC, how often it tried each kind of attack."""
    complaints: list[str] = field(default_factory=list)
    """What the worker should not have answered, each with the place that --replay takes; the first few."""


def chance(seed: int, level: str, thread: int, number: int) -> random.Random:
    """Return what decides one conversation, and no other."""
    return random.Random(f"{seed}/{level}/{thread}/{number}")


def attacker(
    pipe: Connection, level: str, seed: int, most: int | None, address: str, others: list[str]
) -> None:
    """Be a process that attacks on one level until it is told to finish.

    most: how often each thread attacks; None: without end. others: further addresses for attacks below gRPC.
    """
    tallies = [Tally() for _ in range(THREADS[level])]
    running = Threads()
    for number, tally in enumerate(tallies):
        if level == WIRE:
            running.start(_throw, running, tally, seed, number, most, [address, *others])
        else:
            running.start(_talk, running, tally, seed, level, number, most, address)

    def progress() -> Tally:
        counts = sum((tally.counts for tally in tallies), Counter[str]())
        return Tally(counts, [complaint for tally in tallies for complaint in tally.complaints])

    def finish() -> Tally:
        running.end()
        return progress()

    serve(pipe, {"progress": progress, "finish": finish}, running.errors)
    running.end()


def _numbers(running: Threads, most: int | None) -> Iterator[int]:
    """Count attacks from 0, until there were so many or the process is told to finish."""
    for number in itertools.count() if most is None else range(most):
        if running.stop.is_set():
            return
        yield number


def _throw(
    running: Threads, tally: Tally, seed: int, thread: int, most: int | None, addresses: list[str]
) -> None:
    with Wire(addresses) as wire:
        for number in _numbers(running, most):
            tally.counts[wire.attack(chance(seed, WIRE, thread, number))] += 1


def _talk(
    running: Threads, tally: Tally, seed: int, level: str, thread: int, most: int | None, address: str
) -> None:
    with ExitStack() as connection:
        for number in _numbers(running, most):
            if number % _CALLS_PER_CONNECTION == 0:
                connection.close()
                channel = connection.enter_context(grpc.insecure_channel(address, options=OPTIONS))
            conversation = SPEECH[level](chance(seed, level, thread, number))
            answer = hold(channel, conversation)
            tally.counts[answer.error or answer.status.name] += 1
            if (wrong := complaint(conversation, answer)) and len(tally.complaints) < _MOST_COMPLAINTS:
                tally.complaints.append(f"{level}/{thread}/{number}: {wrong}; said was {conversation}")


def replay(seed: int, place: str, address: str) -> tuple[Conversation, Answer]:
    """Have one conversation again; place: level/thread/number, as in a complaint."""
    level, thread, number = place.split("/")
    conversation = SPEECH[level](chance(seed, level, int(thread), int(number)))
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        return conversation, hold(channel, conversation)
