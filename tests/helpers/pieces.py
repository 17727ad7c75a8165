"""Long runs of a state machine, which `make property` makes in pieces with one seed each."""

from __future__ import annotations

import os
import random
from typing import Any, ClassVar

from hypothesis import seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

LONG = os.environ.get("TUPLEWIRE_LONG") == "1"


class CountedSteps(RuleBasedStateMachine):
    """A machine with the number of steps taken by all machines of this process."""

    steps: ClassVar[int] = 0

    @invariant()
    def counted(self) -> None:
        CountedSteps.steps += 1


def run_pieces(machine: Any, piece: settings, most: int) -> None:
    """Run pieces until the machine has counted `most` steps, from TUPLEWIRE_SEED or a random seed on."""
    number = int(os.environ.get("TUPLEWIRE_SEED") or random.randrange(10**9))
    begun = machine.steps
    while (taken := machine.steps - begun) < most:
        print(f"{taken:,} steps; next: SEED={number}", flush=True)
        run_state_machine_as_test(seed(number)(type(machine.__name__, (machine,), {})), settings=piece)
        number += 1
    print(f"{taken:,} steps in all, the last with SEED={number - 1}")
