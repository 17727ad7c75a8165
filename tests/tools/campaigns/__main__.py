"""The command behind `make chaos`, `make chaos-transport`, `make fuzz` and `make soak`.

Exit status: 0 if every guarantee held; 1 if not, with a list of the faults.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from campaigns.campaign import Campaign
from campaigns.chaos import transports, workers
from campaigns.fuzz import fuzz
from campaigns.soak import month, rolling
from campaigns.soak.account import Extent

_HELP = {
    "transport": "local, grpc or zmq",
    "minutes": "length of the run",
    "every": "seconds between faults",
    "rate": "messages per second of each sender",
    "days": "days, 2 or more",
    "restarts": "number of restarts",
    "drain_seconds": "the workers' limit for a drain",
}
Build = Callable[[argparse.Namespace, Path], Campaign]


def _chaos(kind: type[workers.WorkerChaos | transports.TransportChaos]) -> Build:
    return lambda given, directory: kind(
        given.seed,
        given.minutes * 60,
        directory=directory,
        transport=given.transport,
        every=given.every,
        rate=given.rate,
    )


def _month(given: argparse.Namespace, directory: Path) -> Campaign:
    return month.Month(given.seed, Extent(given.days), directory=directory)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="campaigns", description=__doc__)
    kinds = parser.add_subparsers(required=True)

    def add(
        name: str,
        target: str,
        module: ModuleType,
        build: Build,
        *,
        seeded: bool = True,
        seed: int | None = None,
        **defaults: Any,
    ) -> None:
        effect = "The same seed gives the same plan. " if seeded else ""
        each = kinds.add_parser(
            name,
            prog=f"make {target}",
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"{effect}The effect of an action also depends on timing.",
        )
        each.set_defaults(build=build, again=f"make {target}")
        if seeded:
            told = "another one each time" if seed is None else seed
            each.add_argument("--seed", type=int, default=seed, help=f"seed of the plan (default: {told})")
        each.add_argument("--plan", action="store_true", help="print the plan, and start nothing")
        for option, default in defaults.items():
            flag, about = f"--{option.replace('_', '-')}", f"{_HELP[option]} (default: {default})"
            each.add_argument(flag, type=type(default), default=default, help=about)

    faults: dict[str, Any] = {"minutes": 1.0, "every": 1.0, "rate": 2000.0}
    add("chaos", "chaos", workers, _chaos(workers.WorkerChaos), transport="grpc", **faults)
    on_transport = _chaos(transports.TransportChaos)
    add("transport", "chaos-transport", transports, on_transport, transport="zmq", **faults)
    add(
        "fuzz",
        "fuzz",
        fuzz,
        lambda given, at: fuzz.Fuzz(given.seed, given.minutes * 60, directory=at),
        minutes=3.0,
    )
    add("month", "soak", month, _month, seed=7, days=30)
    add(
        "rolling",
        "soak PART=rolling",
        rolling,
        lambda given, at: rolling.RollingRestarts(given.restarts, given.drain_seconds, directory=at),
        seeded=False,  # its plan is always the same
        restarts=100,
        drain_seconds=10.0,
    )
    return parser


def main() -> int:
    """Run the campaign of the command line, and print its report."""
    arguments = _parser().parse_args()
    words = sys.argv[2:]
    seeded = "seed" in arguments
    if seeded and arguments.seed is None:
        arguments.seed = time.time_ns() % 1_000_000
        words.append(f"--seed={arguments.seed}")
    if arguments.plan:
        for action in arguments.build(arguments, Path()).plan():
            print(f"{action.at:7.1f} s  {action}")
        return 0
    directory = Path(tempfile.mkdtemp(prefix="tuplewire-campaign-"))
    campaign: Campaign = arguments.build(arguments, directory)
    told = f"seed {arguments.seed}; " if seeded else ""
    print(f"{told}journals and logs in {directory}", flush=True)
    campaign.run()
    print("\n".join(campaign.report()))
    for fault in campaign.faults:
        print(f"FAULT: {fault}")
    if campaign.ok:
        shutil.rmtree(directory)
        print("every promise was kept")
        return 0
    print(f"FAILED with {len(campaign.faults)} faults; journals and logs remain in {directory}")
    print(f"again: {arguments.again} ARGS='{' '.join(words)}'")
    return 1


if __name__ == "__main__":
    sys.exit(main())
