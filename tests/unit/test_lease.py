"""Who leads: at most one at any time, whatever the clocks and the API do."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tuplewire_service.leading.leader import addresses_of
from tuplewire_service.leading.lease import LEASE_SECONDS, RENEW_SECONDS, Candidate, Lease


class Kept:
    """A lease as the API keeps it: written only by who has seen the newest version."""

    def __init__(self) -> None:
        self.lease: Lease | None = None

    def put(self, lease: Lease) -> bool:
        """Write it, or refuse."""
        known = "" if self.lease is None else self.lease.version
        if lease.version != known:
            return False
        self.lease = replace(lease, version=str(int(known or 0) + 1))
        return True


def look(candidate: Candidate, kept: Kept, now: float) -> None:
    """Do what a program does in a turn."""
    wanted = candidate.decide(kept.lease, now, f"{now}")
    if wanted is None:
        candidate.lost()
    elif kept.put(wanted):
        candidate.wrote(now)


def test_the_second_waits_until_the_lease_has_run_out() -> None:
    """It takes the lease once it has seen it unchanged for its whole time, by its own clock."""
    kept, first, second = Kept(), Candidate("a"), Candidate("b")
    look(first, kept, 0)
    look(second, kept, 1)
    assert first.leads(1)
    assert not second.leads(1)
    look(first, kept, 2)  # renewed
    look(second, kept, 3)
    look(second, kept, 3 + LEASE_SECONDS - 0.1)
    assert not second.leads(3 + LEASE_SECONDS - 0.1)
    look(second, kept, 3 + LEASE_SECONDS)
    assert second.leads(3 + LEASE_SECONDS)
    assert kept.lease is not None
    assert kept.lease.transitions == 1
    look(first, kept, 3 + LEASE_SECONDS)
    assert not first.leads(3 + LEASE_SECONDS)


def test_what_was_given_back_is_taken_at_once() -> None:
    """A lease without a holder waits for nobody."""
    kept, second = Kept(), Candidate("b")
    kept.lease = Lease("", renewed="x", version="7")
    look(second, kept, 0)
    assert second.leads(0)


def test_a_leader_that_cannot_renew_stops_before_others_begin() -> None:
    """It leads no more when it has not written for a while, though nobody has told it."""
    kept, first = Kept(), Candidate("a")
    look(first, kept, 0)
    assert first.leads(RENEW_SECONDS - 0.1)
    assert not first.leads(RENEW_SECONDS)
    assert RENEW_SECONDS < LEASE_SECONDS


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 20), st.booleans()), max_size=60))
def test_never_two(turns: list[tuple[int, float, bool]]) -> None:
    """Of three that look at odd times, at times in vain, no two lead at the same time."""
    kept, candidates, now = Kept(), [Candidate(name) for name in "abc"], 0.0
    offsets = (0.0, 1000.0, -500.0)  # their clocks have nothing in common
    for who, pause, reaches in turns:
        now += pause
        if reaches:
            look(candidates[who], kept, now + offsets[who])
        leading = [each for each, offset in zip(candidates, offsets, strict=True) if each.leads(now + offset)]
        assert len(leading) <= 1


def test_a_name_stands_for_its_addresses() -> None:
    """Each address once; a name of both families counts by IPv4."""
    assert addresses_of(["127.0.0.1:6700", "[::1]:6700", "127.0.0.1:6700"]) == [
        "127.0.0.1:6700",
        "[::1]:6700",
    ]
    assert addresses_of(["localhost:6700"]) in (["127.0.0.1:6700"], ["[::1]:6700"])
