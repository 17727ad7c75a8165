"""Laws of Team: forming with any faults of the network, and matching in any order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplewire.errors import TeamMismatchError
from tuplewire.team.protocol import WINDOW, CallMatcher, Kind, Message, TeamFormation, unpack


class Network:
    """Members that form a team, and their messages, which may be lost, copied and delivered in any order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ids = 0
        self.messages: list[tuple[int, Message]] = []
        self.ready: set[tuple[bytes, int]] = set()
        """The ids of members, and of the teams in their JOIN messages, for which they were ready."""
        self.members: list[TeamFormation] = []
        self.own_ids: list[bytes] = []
        for rank in range(size):
            self.members.append(self._new(rank))

    def _new(self, rank: int) -> TeamFormation:
        self.ids += 1
        own_id = self.ids.to_bytes(8)
        self.own_ids[rank : rank + 1] = [own_id]
        return TeamFormation(rank, self.size, own_id)

    def restart(self, rank: int) -> None:
        """Replace a member's process; its old messages may still arrive."""
        self.members[rank] = self._new(rank)

    def repeat(self, rank: int) -> None:
        """Let a member send again, as every 0.5 s."""
        if not self.members[rank].started:
            join = self.members[rank].build_notice(Kind.JOIN, self.own_ids[rank])
            self.send(rank, [(0, join)] if rank else [])

    def send(self, rank: int, messages: list[tuple[int, Message]]) -> None:
        for to, message in messages:
            if message.kind == Kind.JOIN:
                self.ready.add((self.own_ids[rank], message.team))
            self.messages.append((to, message))

    def deliver(self, index: int, *, copy: bool) -> None:
        """Deliver one of the messages, and perhaps keep a copy."""
        if self.messages:
            index %= len(self.messages)
            to, message = self.messages[index] if copy else self.messages.pop(index)
            self.send(to, self.members[to].add(message))
            self.check()

    def check(self) -> None:
        """Check all members that have started."""
        started = {rank: each for rank, each in enumerate(self.members) if each.started}
        for rank, each in started.items():
            assert each.ids[rank] == self.own_ids[rank]
            assert all((member, each.team) in self.ready for member in each.ids[1:])
        assert len({(each.team, *each.ids) for each in started.values()}) == len(
            {each.team for each in started.values()}
        )


KINDS = ["repeat", "deliver", "copy", "lose", "restart"]
ACTIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 50)), max_size=60)


@given(st.integers(2, 4), ACTIONS)
def test_a_team_forms_from_living_members_only(size: int, actions: list[tuple[str, int]]) -> None:
    """No member starts without all others, and no team mixes two attempts; at the end, all are in one."""
    network = Network(size)
    for action, number in actions:
        if action == "repeat":
            network.repeat(number % size)
        elif action == "restart":
            network.restart(number % size)
        elif action == "lose" and network.messages:
            network.messages.pop(number % len(network.messages))
        else:
            network.deliver(number, copy=action == "copy")
    for _ in range(6):
        # The members of a team that has lost one get an error, and join again. A READY that is still in
        # transit may start such a team.
        if any(each.started and each.ids != network.own_ids for each in network.members):
            for rank in range(size):
                network.restart(rank)
        for rank in range(size):
            network.repeat(rank)
        for _ in range(len(network.messages) * 20):
            network.deliver(0, copy=False)
    assert {each.team for each in network.members} == {network.members[0].team}
    assert all(each.started and each.ids == network.own_ids for each in network.members)


PIECE = 8
VALUES = st.binary(max_size=4 * PIECE)
GATHER, BARRIER = "gather #{} (root 0)", "barrier #{}"


def pieces_of(rank: int, values: dict[int, bytes], calls: dict[int, str]) -> list[Message]:
    """Return the messages of a rank's values in some calls, as they arrive."""
    found: list[Message] = []
    for number, value in values.items():
        for start in range(0, max(1, len(value)), PIECE):
            about = 1, number, rank, Kind.CALL, len(found), len(value), 0, calls[number].format(number)
            found.append(Message(*about, value[start : start + PIECE]))
    return [each for each in (unpack(each.pack()) for each in found) if each is not None]


@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_pieces_arrive_in_any_order(data: st.DataObject, ranks: int, calls: int) -> None:
    """Every call gets its own values, although pieces of later calls, and copies, arrive in any order."""
    numbers = range(1, calls + 1)
    sent = {rank: {number: data.draw(VALUES) for number in numbers} for rank in range(ranks)}
    named = dict.fromkeys(numbers, GATHER)
    pieces = [each for rank, values in sent.items() for each in pieces_of(rank, values, named)]
    copies = data.draw(st.lists(st.sampled_from(pieces), max_size=5))
    matching, number = CallMatcher(), 1
    got: dict[int, dict[int, bytearray]] = {rank: {} for rank in range(ranks)}
    matching.begin(1, GATHER.format(1))
    for message in data.draw(st.permutations([*pieces, *copies])):
        matching.add(message)
        while number <= calls:
            for rank, values in got.items():
                value = matching.take(rank, Kind.CALL) if number not in values else None
                if value is not None:
                    values[number] = value
            if not all(number in values for values in got.values()):
                break
            number += 1
            matching.begin(number, GATHER.format(number))
    assert got == sent
    assert not any(each.arrived or each.value for each in matching.streams.values())


@given(st.data(), st.integers(1, 3))
def test_another_call_is_found_in_any_order(data: st.DataObject, wrong: int) -> None:
    """If a rank makes another call as one of three, an error names it as soon as both have made it."""
    made = {number: BARRIER if number == wrong else GATHER for number in range(1, 4)}
    pieces = pieces_of(1, {number: data.draw(VALUES) for number in made}, made)
    matching, number = CallMatcher(), 1

    def follow() -> None:
        nonlocal number
        matching.begin(1, GATHER.format(1))
        for message in data.draw(st.permutations(pieces)):
            matching.add(message)
            while matching.take(1, Kind.CALL) is not None:
                number += 1
                matching.begin(number, GATHER.format(number))

    with pytest.raises(TeamMismatchError, match=rf"gather #{wrong} .*: rank 1 has called barrier #{wrong}"):
        follow()
    assert number == wrong


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60))
def test_the_window_limits_both_sides(actions: list[tuple[bool, int]]) -> None:
    """The receiver never has more pieces than the window, and each confirmation lets the sender continue."""
    matching = CallMatcher()
    sender, receiver = CallMatcher().streams[1, Kind.SEND], matching.streams[1, Kind.SEND]
    for sends, count in actions:
        for _ in range(count):
            if sends and sender.sent < sender.confirmed + WINDOW:
                matching.add(Message(1, 0, 1, Kind.SEND, sender.sent))
                sender.sent += 1
            elif not sends:
                matching.take(1, Kind.SEND)
        if receiver.taken >= receiver.reported + WINDOW // 2:
            sender.confirmed = receiver.reported = receiver.taken
    assert sender.sent - receiver.taken == len(receiver.arrived) <= WINDOW
    assert sender.sent < sender.confirmed + WINDOW or sender.sent > receiver.taken
