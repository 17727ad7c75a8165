"""Attacks that have exactly one correct answer, regardless of other attacks."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle

from campaigns.fuzz.conversation import Conversation
from campaigns.fuzz.garbage import CONTROL, IDS
from helpers.hostile import RECV, SEND, TARGET_TASK, frame, hello, raw_frame, subscribe

_NOBODYS_TASK = 999


def _sends(refusal: str, *requests: bytes) -> Conversation:
    return Conversation(SEND, requests, refusal=refusal)


def _receives(refusal: str, *requests: bytes) -> Conversation:
    return Conversation(RECV, requests, refusal=refusal)


def _stale(name: str) -> Conversation:
    """Return the hello of an incarnation that a newer one has just replaced."""
    newer, older = (Conversation(SEND, (hello(sender_id=name, incarnation=each),)) for each in (2, 1))
    return Conversation(SEND, older.requests, after=newer, refusal="STALE_INCARNATION")


KINDS: dict[str, Callable[[str], Conversation]] = {
    "early": lambda _: _sends("MALFORMED", frame()),
    "empty": lambda name: _sends("MALFORMED", hello(sender_id=name), raw_frame()),
    "topology": lambda name: _sends("WRONG_TOPOLOGY", hello(sender_id=name, topology="other")),
    "stale": _stale,
    "gap": lambda name: _sends("SEQUENCE_GAP", hello(sender_id=name), frame(2**63)),
    "protocol": lambda name: _receives(
        "PROTOCOL_VERSION", subscribe(TARGET_TASK, consumer_id=name, protocol_version=99)
    ),
    "nobody": lambda name: _receives("UNKNOWN_TASK", subscribe(_NOBODYS_TASK, consumer_id=name)),
    "control": lambda _: Conversation(
        f"{CONTROL}GetStatus", (b"\xff\xfe garbage",), unary=True, refusal="MALFORMED"
    ),
}
"""Each takes the name of its caller. Concurrent calls need different names: one would replace the other."""


_turns = cycle(KINDS)


def refused(rng: random.Random) -> Conversation:
    """Return a call of the next kind, with a random name; all kinds are equally frequent."""
    kind = next(_turns)
    return KINDS[kind](f"{kind}-{rng.randrange(IDS)}")
