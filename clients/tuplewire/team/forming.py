"""The forming of a team: rank 0 collects the ids of all members, and starts the team once all are ready.

Used by members.py. Owns the ids of the members. No I/O and no clock. Not thread-safe.
Design: docs/design/teams.md ("Forming").

In JOIN, a message's `team` is the random id of its sender. PREPARE has the ids of all members as its `shape`.
A lost message is replaced when its member repeats JOIN; copies and old messages have no effect.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

from tuplewire.team.matching import Call, Message

Answers = list[tuple[int, Message]]
"""Messages, with the ranks to send them to."""


def team_of(ids: tuple[int, ...]) -> int:
    """Return the id of the team of these members; it differs after each restart of a member."""
    packed = struct.pack(f"<{len(ids)}Q", *ids)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


class Forming:
    """The state of one member while a team forms. Rank 0 decides; the others answer."""

    def __init__(self, rank: int, size: int, own_id: int) -> None:
        """Start alone. own_id: a random number of 64 bits, new for each Team."""
        self.started = size == 1
        """True once all members are ready. Later messages of forming still need answers."""
        self.ids: tuple[int, ...] = (own_id,) if self.started else ()
        """The ids in the last PREPARE, by rank; empty before it."""
        self.team = team_of(self.ids)
        self._rank, self._size, self._own_id = rank, size, own_id
        self._known, self._ready = {rank: own_id}, {0}

    def repeat(self) -> Answers:
        """Return the message to send at the start, and again every 0.5 s until the team has started."""
        return [(0, Message(self._own_id, 0, self._rank, Call.JOIN))] if self._rank else []

    def missing(self) -> list[int]:
        """Return the ranks that this member waits for."""
        seen = self._ready if self.ids else self._known
        return [0] if self._rank else [rank for rank in range(self._size) if rank not in seen]

    def is_member(self, message: Message) -> bool:
        """Return False for a JOIN of another process than the member of the started team."""
        return message.call != Call.JOIN or not self.started or self.ids[message.rank] == message.team

    def add(self, message: Message) -> Answers:
        """Process a message of a member; return the answers."""
        team, rank, ids = message.team, message.rank, message.shape
        if self._rank == 0:
            if message.call == Call.JOIN and rank:
                return self._on_join(rank, team)
            if message.call == Call.READY and self.ids and team == self.team and not self.started:
                self._ready.add(rank)
                self.started = len(self._ready) == self._size
                return [(other, self._note(Call.START)) for other in range(1, self._size) if self.started]
        elif message.call == Call.PREPARE and not self.started:
            if len(ids) == self._size and ids[self._rank] == self._own_id and team_of(ids) == team:
                self.ids, self.team = ids, team
                return [(0, self._note(Call.READY))]
        elif message.call == Call.START and self.ids and team == self.team:
            self.started = True
        return []

    def _on_join(self, rank: int, member_id: int) -> Answers:
        if self.started:  # its START was lost, or arrived before a late copy of an older PREPARE
            return [(rank, self._note(Call.PREPARE)), (rank, self._note(Call.START))]
        if self._known.get(rank) != member_id:
            self._known[rank] = member_id
            self._ready, complete = {0}, len(self._known) == self._size
            self.ids = tuple(self._known[each] for each in range(self._size)) if complete else ()
            self.team = team_of(self.ids)
        unready = set(range(self._size)) - self._ready if self.ids else ()
        return [(other, self._note(Call.PREPARE)) for other in unready]

    def _note(self, call: int) -> Message:
        return Message(self.team, 0, self._rank, call, shape=self.ids if call == Call.PREPARE else ())
