"""The process that attacks: threads with a connection each, one conversation after the other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import grpc
from helpers.hostile import OPTIONS, Answer
from helpers.program import Threads, serve

from fuzz.conversation import Conversation, complaint, hold
from fuzz.garbage import garbage
from fuzz.misuse import misuse
from fuzz.wire import Wire

SPEECH: dict[str, Callable[[random.Random], Conversation]] = {"garbage": garbage, "misuse": misuse}
WIRE = "wire"
LEVELS = (WIRE, *SPEECH)
"""Bytes below gRPC; gRPC messages of random bytes; well-formed messages that make no sense."""
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


def attacker(pipe: Connection, level: str, seed: int, threads: int, address: str, others: list[str]) -> None:
    """Be a process that attacks on one level until it is told to finish.

    others: further addresses for attacks below gRPC.
    """
    tally = Tally()
    running = Threads()
    for number in range(threads):
        if level == WIRE:
            running.start(_throw, running, tally, seed, number, [address, *others])
        else:
            running.start(_talk, running, tally, seed, level, number, address)

    def finish() -> Tally:
        running.end()
        return tally

    serve(pipe, {"progress": lambda: tally, "finish": finish}, running.errors)
    running.end()


def _throw(running: Threads, tally: Tally, seed: int, thread: int, addresses: list[str]) -> None:
    number = 0
    with Wire(addresses) as wire:
        while not running.stop.is_set():
            tally.counts[wire.attack(chance(seed, WIRE, thread, number))] += 1
            number += 1


def _talk(running: Threads, tally: Tally, seed: int, level: str, thread: int, address: str) -> None:
    number = 0
    while not running.stop.is_set():
        with grpc.insecure_channel(address, options=OPTIONS) as channel:
            for _ in range(_CALLS_PER_CONNECTION):
                if running.stop.is_set():
                    return
                conversation = SPEECH[level](chance(seed, level, thread, number))
                answer = hold(channel, conversation)
                tally.counts[answer.error or answer.status.name] += 1
                if (wrong := complaint(conversation, answer)) and len(tally.complaints) < _MOST_COMPLAINTS:
                    tally.complaints.append(f"{level}/{thread}/{number}: {wrong}; said was {conversation}")
                number += 1


def replay(seed: int, place: str, address: str) -> tuple[Conversation, Answer]:
    """Have one conversation again; place: level/thread/number, as in a complaint."""
    level, thread, number = place.split("/")
    conversation = SPEECH[level](chance(seed, level, int(thread), int(number)))
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        return conversation, hold(channel, conversation)
