"""Calls of every method with random bytes as gRPC messages."""

from __future__ import annotations

import random

from campaigns.fuzz.conversation import HEALTH, MAX_REQUEST_BYTES, Conversation
from google.protobuf.message import DecodeError
from helpers.hostile import RECV, SEND, TARGET_TASK, hello, subscribe

from tuplewire.values.columns import varint
from tuplewire.wire import control_pb2

CONTROL = "/tuplewire.v1.Control/"
IDS = 400
"""Number of different sender and consumer names, which bounds the state that the worker remembers."""


def garbage(rng: random.Random) -> Conversation:
    """Return a call with random bytes in it."""
    match rng.randrange(10):
        case 0 | 1 | 2:
            return Conversation(SEND, _requests(rng, hello(sender_id=f"garbage-{rng.randrange(IDS)}")))
        case 3 | 4 | 5:
            opening = subscribe(TARGET_TASK, consumer_id=f"garbage-{rng.randrange(IDS)}")
            return Conversation(RECV, _requests(rng, opening))
        case 6:
            return Conversation(HEALTH, (junk(rng),), unary=True)
        case 7:
            return Conversation(f"{CONTROL}Drain", (_unreadable(rng),), unary=True)
        case _:
            method = rng.choice(["GetStatus", "GetLoad", "GetAssignment", "UpdateAssignment"])
            return Conversation(f"{CONTROL}{method}", (junk(rng),), unary=True)


def _requests(rng: random.Random, opening: bytes) -> tuple[bytes, ...]:
    first = (opening,) if rng.random() < 0.6 else ()
    return (*first, *(junk(rng) for _ in range(rng.randrange(4))))


def junk(rng: random.Random) -> bytes:
    """Return random bytes, sometimes none, sometimes many, sometimes in the form of protobuf fields."""
    match rng.randrange(20):
        case 0:
            return b""
        case 1:
            return rng.randbytes(rng.randrange(1 << 20))
        case 2 if rng.random() < 0.1:
            return bytes(MAX_REQUEST_BYTES + rng.randrange(1 << 20))
        case number if number < 10:
            return b"".join(_field(rng) for _ in range(rng.randrange(1, 12)))
        case _:
            return rng.randbytes(rng.randrange(1, 300))


def _field(rng: random.Random) -> bytes:
    number, wire_type = rng.randrange(1, 9), rng.randrange(6)
    tag = varint(number << 3 | wire_type)
    match wire_type:
        case 0:
            return tag + varint(rng.getrandbits(rng.choice([1, 7, 31, 32, 63, 64])))
        case 1:
            return tag + rng.randbytes(8)
        case 2:
            content = rng.randbytes(rng.randrange(40))
            said = len(content) if rng.random() < 0.7 else rng.getrandbits(rng.choice([4, 16, 31, 62]))
            return tag + varint(said) + content
        case 5:
            return tag + rng.randbytes(4)
        case _:
            return tag


def _unreadable(rng: random.Random) -> bytes:
    """Return bytes that are not a DrainRequest, because a valid request would shut down the worker."""
    while True:
        data = junk(rng)
        try:
            control_pb2.DrainRequest.FromString(data)
        except DecodeError:
            return data
