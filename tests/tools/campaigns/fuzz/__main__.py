"""The command behind `make fuzz`; exits with 1 when anything is wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from campaigns.fuzz.attacker import replay
from campaigns.fuzz.campaign import Extent, campaign, target


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of every conversation (default: the time)")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long (default 3)")
    parser.add_argument(
        "--replay", metavar="LEVEL/THREAD/NUMBER", help="have one conversation of the seed again"
    )
    arguments = parser.parse_args()
    if arguments.replay and arguments.seed is None:
        parser.error("--replay needs the --seed that the conversation belongs to")
    return arguments


def main() -> int:
    """Attack, and print what came of it."""
    arguments = _arguments()
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tuplewire-fuzz-") as name:
        directory = Path(name)
        if arguments.replay:
            with target(directory) as (workers, endpoint):
                conversation, answer = replay(seed, arguments.replay, endpoint.address)
                print(f"{conversation}\n{answer}")
                workers.stop()
                print(workers.log_of(0).read_text(encoding="utf-8"))
            return 0
        extent = Extent(seconds=arguments.minutes * 60)
        report = campaign(directory, seed, extent, lambda line: print(line, flush=True))
    print(report)
    for fault in report.faults:
        print(f"FAULT: {fault}")
    print(f"seed {seed}: {len(report.faults)} faults")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
