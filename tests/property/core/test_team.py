"""Laws of Team: forming with any faults of the network, and matching in any order of arrival."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplewire.errors import TeamMismatchError
from tuplewire.team import protocol as module
from tuplewire.team.protocol import Call, Forming, Matching, Message

# --- forming ---------------------------------------------------------------------------------------------


class Network:
    """Members that form a team, and their messages, which may be lost, copied and delivered in any order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ids = 0
        self.messages: list[tuple[int, Message]] = []
        self.ready: set[tuple[int, int]] = set()
        """The ids of members, and of the teams that they were ready for."""
        self.members: list[Forming] = []
        self.own_ids: list[int] = []
        for rank in range(size):
            self.members.append(self._new(rank))

    def _new(self, rank: int) -> Forming:
        self.ids += 1
        self.own_ids[rank : rank + 1] = [self.ids]
        return Forming(rank, self.size, self.ids)

    def restart(self, rank: int) -> None:
        """Replace a member's process; its old messages may still arrive."""
        self.members[rank] = self._new(rank)

    def repeat(self, rank: int) -> None:
        """Let a member send again, as every 0.5 s."""
        if not self.members[rank].started:
            self.send(rank, self.members[rank].repeat())

    def send(self, rank: int, messages: list[tuple[int, Message]]) -> None:
        """Put messages into the network."""
        for to, message in messages:
            if message.call == Call.READY:
                self.ready.add((self.own_ids[rank], message.team))
            self.messages.append((to, message))

    def deliver(self, index: int, *, copy: bool) -> None:
        """Deliver one of the messages, and perhaps keep a copy."""
        if self.messages:
            index %= len(self.messages)
            to, message = self.messages[index] if copy else self.messages.pop(index)
            if self.members[to].is_member(message):
                self.send(to, self.members[to].add(message))
            self.check()

    def check(self) -> None:
        """Check all members that have started."""
        started = {rank: each for rank, each in enumerate(self.members) if each.started}
        for rank, each in started.items():
            assert each.ids[rank] == self.own_ids[rank]
            assert all((member, each.team) in self.ready for member in each.ids[1:])
        assert len({(each.team, each.ids) for each in started.values()}) == len(
            {each.team for each in started.values()}
        )


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("repeat"), st.integers(0, 3)),
        st.tuples(st.just("deliver"), st.integers(0, 50)),
        st.tuples(st.just("copy"), st.integers(0, 50)),
        st.tuples(st.just("lose"), st.integers(0, 50)),
        st.tuples(st.just("restart"), st.integers(0, 3)),
    ),
    max_size=60,
)


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
        if any(each.started and each.ids != tuple(network.own_ids) for each in network.members):
            for rank in range(size):
                network.restart(rank)
        for rank in range(size):
            network.repeat(rank)
        for _ in range(len(network.messages) * 20):
            network.deliver(0, copy=False)
    assert {each.team for each in network.members} == {network.members[0].team}
    assert all(each.started and each.ids == tuple(network.own_ids) for each in network.members)


# --- matching --------------------------------------------------------------------------------------------

PIECE = 8
VALUES = st.binary(max_size=4 * PIECE)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Any:
    """Cut values into pieces of eight bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", PIECE)
        yield


def pieces_of(rank: int, number: int, call: Call, value: bytes) -> list[Message]:
    """Return the messages of a value, as they arrive."""
    whole = Message(1, number, rank, call, size=len(value), body=value)
    found = [module.unpack(whole.packed(piece)) for piece in range(whole.pieces())]
    return [each for each in found if each is not None]


@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_pieces_arrive_in_any_order(data: st.DataObject, ranks: int, calls: int) -> None:
    """Every call gets its own values, although pieces of later calls, and copies, arrive in any order."""
    sent = {(rank, number): data.draw(VALUES) for rank in range(ranks) for number in range(1, calls + 1)}
    pieces = [
        each for (rank, number), value in sent.items() for each in pieces_of(rank, number, Call.GATHER, value)
    ]
    copies = data.draw(st.lists(st.sampled_from(pieces), max_size=5))
    matching, number, got = Matching(), 1, dict[tuple[int, int], bytes]()
    matching.begin(Message(number=1, call=Call.GATHER), 0, range(ranks))
    for message in data.draw(st.permutations([*pieces, *copies])):
        matching.add(message)
        while number <= calls:
            for rank in range(ranks):
                value = matching.take((rank, False), number, 0) if (rank, number) not in got else None
                if value is not None:
                    got[rank, number] = bytes(value.body)
            if not all((rank, number) in got for rank in range(ranks)):
                break
            number += 1
            matching.begin(Message(number=number, call=Call.GATHER), 0, range(ranks))
    assert got == sent
    assert not any(matching._arrived.values())


@given(st.data(), st.integers(1, 3))
def test_another_call_is_found_in_any_order(data: st.DataObject, wrong: int) -> None:
    """If a rank makes another call as one of three, an error names it as soon as both have made it."""
    made = {number: Call.BARRIER if number == wrong else Call.GATHER for number in range(1, 4)}
    pieces = [each for number, call in made.items() for each in pieces_of(1, number, call, data.draw(VALUES))]
    matching, number = Matching(), 1

    def follow() -> None:
        nonlocal number
        matching.begin(Message(number=1, call=Call.GATHER), 0, [1])
        for message in data.draw(st.permutations(pieces)):
            matching.add(message)
            while matching.take((1, False), number, 0) is not None:
                number += 1
                matching.begin(Message(number=number, call=Call.GATHER), 0, [1])

    with pytest.raises(TeamMismatchError, match=f"gather #{wrong}: rank 1 has called barrier #{wrong}"):
        follow()
    assert number == wrong


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60))
def test_the_window_limits_both_sides(actions: list[tuple[bool, int]]) -> None:
    """The receiver never has more pieces than the window, and each confirmation lets the sender continue."""
    sender, receiver = Matching(), Matching()
    sent = taken = 0
    for sends, count in actions:
        for _ in range(count):
            if sends and sender.free((1, True)):
                sent += 1
                sender.sent[1, True] += 1
                receiver.add(Message(number=sent, rank=1, call=Call.SEND))
            elif not sends and receiver.take((1, True), taken + 1, 0):
                taken += 1
        for stream, number in receiver.confirmations():
            receiver.reported[stream] = number
            sender.confirmed[stream] = number
    assert sent - taken <= module.WINDOW
    assert sender.free((1, True)) or sent > taken
