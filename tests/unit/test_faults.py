"""Rules of faults on purpose: how they are written, and what they decide."""

from __future__ import annotations

import pytest

from tuplewire.errors import ConfigError
from tuplewire_service.messaging.faults import UNTOUCHED, Fate, FaultRule, Faults, parse_faults
from tuplewire_service.process.worker_config import WorkerConfig


def test_rules_are_read() -> None:
    """Words in any order; several rules; none."""
    assert parse_faults(" method=Send lose=0.1 peer=shop* ; delay=0.5 slow=1000;") == (
        FaultRule(lose=0.1, method="Send", peer="shop*"),
        FaultRule(delay=0.5, slow=1000.0),
    )
    assert parse_faults(" ; ") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("loose=1", "a fault is one of lose, double, cut, delay, slow, rate, method, peer"),
        ("lose", "with = and a value"),
        ("lose=", "with = and a value"),
        ("lose=1.1", "lose is a number from 0 to 1, not '1.1'"),
        ("cut=nan", "cut is a number"),
        ("delay=3600", "delay is a number from 0 to 60"),
        ("method=Send", "does nothing"),
        ("lose=0 peer=a", "does nothing"),
        ("lose=1 rate=0", "does nothing"),
        ("rate=0.5", "does nothing"),
        ("lose=1 rate=2", "rate is a number from 0 to 1"),
        (";".join(["lose=1"] * 21), "20 rules at most"),
    ],
)
def test_what_is_no_rule(text: str, problem: str) -> None:
    """The error names the word, and what it may be."""
    with pytest.raises(ConfigError, match=problem):
        parse_faults(text)


def test_a_rule_is_for_its_methods_and_peers() -> None:
    """Delays add up, and what is not meant is untouched; faults can always be ended."""
    faults = Faults(parse_faults("lose=1 delay=1 method=Send peer=shop*; slow=100 method=S*"))
    assert faults.fate("Send", ["10.0.0.1", "shop-7"], 200) == Fate(3.0, lost=True)
    assert faults.fate("Send", ["10.0.0.1", "bank"], 200) == Fate(2.0)
    assert faults.fate("Recv", ["shop"], 200) == UNTOUCHED
    assert faults.fate("SetFaults", ["shop"], 200) == UNTOUCHED
    assert Faults(parse_faults("cut=1 double=1")).fate("Recv", ["a"], 1) == Fate(cut=True, doubled=True)


def test_a_rate_is_a_share_of_the_messages() -> None:
    """Of many messages some wait, and the others do not."""
    faults = Faults(parse_faults("delay=1 rate=0.5"))
    fates = {faults.fate("Send", ["a"], 1) for _ in range(200)}
    assert fates == {Fate(1.0), UNTOUCHED}
    assert 0 < faults.counts["delayed"] < 200


def test_a_worker_that_matters_has_none() -> None:
    """A setting alone does nothing but be refused."""
    with pytest.raises(ConfigError, match="faults need allow_faults"):
        WorkerConfig(faults="lose=1")
    assert WorkerConfig(faults="lose=1", allow_faults=True).faults == "lose=1"
