"""The command behind `make soak`: a rolling restart, again and again; exits with 1 when anything is wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from soak.rolling import rolling_restart


def main() -> int:
    """Run it, and print a line per restart and the sums."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--restarts", type=int, default=100, metavar="N", help="how many (default 100)")
    parser.add_argument(
        "--drain-seconds", type=float, default=10.0, metavar="S", help="the workers' deadline (default 10)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuplewire-soak-") as directory:
        account = rolling_restart(
            Path(directory),
            arguments.restarts,
            arguments.drain_seconds,
            lambda number, restart: print(f"{number} of {arguments.restarts}: {restart}", flush=True),
        )
    print(account)
    for fault in account.faults:
        print(f"FAULT: {fault}")
    print("nothing lost, doubled or out of order" if not account.faults else "FAILED")
    return 1 if account.faults else 0


if __name__ == "__main__":
    sys.exit(main())
