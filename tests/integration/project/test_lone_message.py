"""The cost of a message that travels alone, in calls of Python functions: they do not vary as times do."""

from __future__ import annotations

import pytest
from calls import count, summed

LIMITS = {"producer": 49, "worker-0": 100, "worker-1": 82, "consumer": 39}
"""The calls of Tuplewire's functions for each message, about 7 % above the measured ones."""
MOST_TURNS = 7.0
"""Turns of a worker's event loop for each message."""


@pytest.mark.usefixtures("no_fork_server")  # the counter starts with the interpreter
def test_calls_of_a_lone_message() -> None:
    """Each of the four processes stays within its limit. `make bench-calls` lists the functions."""
    sums = {name: summed(calls) for name, calls in count(500).items()}
    assert {name: of["tuplewire"] for name, of in sums.items() if of["tuplewire"] > LIMITS[name]} == {}
    assert max(sums["worker-0"]["turns"], sums["worker-1"]["turns"]) <= MOST_TURNS
