"""The command behind `make soak`: a worker's month, or rolling restarts.

Exit status: 0 when all was well; 1 when not, with what was wrong.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from campaigns.soak.account import Extent
from campaigns.soak.month import Month
from campaigns.soak.rolling import rolling_restart
from campaigns.soak.summary import progress, table

_GENERATIONS, _PROGRAMS, _HOUSEHOLDS = 7, 96, 2
_PAIRS = 12
_MOST_MEMORY = 1.1
_RESUME_SECONDS = 15.0
_EVERY_SECONDS = 5.0


def _month(directory: Path, seed: int, days: int) -> list[str]:
    """Live a month, printing a line every few seconds and a table at the end; return what was wrong."""
    extent = Extent(days, _GENERATIONS, _PROGRAMS, _HOUSEHOLDS, _PAIRS, _MOST_MEMORY, _RESUME_SECONDS)
    month = Month(seed, extent, directory)
    over = threading.Event()

    def tell() -> None:
        told = 0
        while not over.wait(_EVERY_SECONDS):
            print(progress(month.account), flush=True)
            for fault in month.account.faults[told:]:
                print(f"FAULT: {fault}", flush=True)
                told += 1

    telling = threading.Thread(target=tell)
    telling.start()
    try:
        account = month.live()
    finally:
        over.set()
        telling.join()
    print("\n".join(table(account)))
    return account.verdict


def _rolling(directory: Path, restarts: int, drain_seconds: float) -> list[str]:
    """Restart workers in turn, printing a line each and the sums; return what was wrong."""
    account = rolling_restart(
        directory,
        restarts,
        drain_seconds,
        lambda number, restart: print(f"{number} of {restarts}: {restart}", flush=True),
    )
    print(account)
    return account.faults


def main() -> int:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--part", choices=("month", "rolling"), default="month", help="default: month")
    parser.add_argument("--seed", type=int, default=7, help="of the month (default 7)")
    parser.add_argument(
        "--days", type=int, default=30, metavar="N", help="of the month (default 30), 2 or more"
    )
    parser.add_argument("--restarts", type=int, default=100, metavar="N", help="rolling ones (default 100)")
    parser.add_argument(
        "--drain-seconds", type=float, default=10.0, metavar="S", help="the workers' deadline (default 10)"
    )
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="tuplewire-soak-"))
    if arguments.part == "month":
        print(f"seed {arguments.seed}, {arguments.days} days; logs in {directory}", flush=True)
        faults = _month(directory, arguments.seed, arguments.days)
    else:
        faults = _rolling(directory, arguments.restarts, arguments.drain_seconds)
    for fault in faults:
        print(f"FAULT: {fault}")
    if faults:
        print(f"FAILED; logs stay in {directory}")
        return 1
    shutil.rmtree(directory)
    print("nothing lost, doubled, out of order, or left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
