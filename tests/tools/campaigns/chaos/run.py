"""Chaos: random faults against real processes, and a verdict on every message.

Three workers, four producers (two in the mode queued, two processed) and three consumers run as processes of
their own; ways between them are cut, delayed and silenced, processes are stopped, killed and drained, tasks
move, control messages are lost and doubled. At the end everything heals, and every message is accounted for.

Exit status: 0 when every promise was kept; 1 when not, with what was broken.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from campaigns.chaos.campaign import Campaign, Outcome
from campaigns.chaos.layout import PRODUCERS
from helpers.control_faults import Fate

_EPILOG = """\
example:
  make chaos SEED=7 MINUTES=2

The same seed gives the same sequence of faults; what they meet on the way is a matter of timing.
"""


def report(outcome: Outcome) -> Iterator[str]:
    """Return the lines that tell what a run has come to, but for the last."""
    yield "faults: " + ", ".join(f"{number} {kind}" for kind, number in sorted(outcome.faults.items()))
    yield f"control messages: {outcome.control[Fate.LOST]:,} lost, {outcome.control[Fate.DOUBLED]:,} doubled"
    for name, ledger in outcome.workers.items():
        yield f"ledger of {name}: {ledger or 'unknown, it does not answer'}"
    for each in PRODUCERS:
        ledger = outcome.producers.get(each.name)
        yield f"ledger of {each.name} ({each.mode}): {ledger or 'unknown, it did not finish'}"
    verdict = outcome.verdict
    yield (
        f"messages: {verdict.accepted:,} accepted, {verdict.received:,} received, "
        f"{verdict.redelivered:,} redelivered and marked, {verdict.dropped:,} dropped and told, "
        f"{verdict.died:,} died in killed workers that had them queued, "
        f"{verdict.overtaken:,} overtaken after a kill during a move"
    )
    yield from outcome.problems
    yield from map(str, verdict.violations)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="make chaos",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="of the faults (default: another one each time)")
    parser.add_argument(
        "--transport", default="grpc", help="between the workers: grpc or zmq (default: grpc)"
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between faults (default: 1)")
    parser.add_argument(
        "--rate", type=float, default=2000.0, help="messages per second of each producer (default: 2000)"
    )
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000
    directory = Path(tempfile.mkdtemp(prefix="tuplewire-chaos-"))
    print(f"seed {seed}, {arguments.minutes:g} minutes; journals and logs in {directory}", flush=True)
    campaign = Campaign(
        seed,
        arguments.minutes * 60,
        directory=directory,
        transport=arguments.transport,
        every=arguments.every,
        rate=arguments.rate,
        say=lambda text: print(text, flush=True),
    )
    outcome = campaign.run()
    print("\n".join(report(outcome)))
    print(outcome.verdict)
    if outcome.ok:
        shutil.rmtree(directory)
        return 0
    print(f"FAILED; journals and logs stay in {directory}")
    print(f"again: make chaos TRANSPORT={arguments.transport} SEED={seed} MINUTES={arguments.minutes:g}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
