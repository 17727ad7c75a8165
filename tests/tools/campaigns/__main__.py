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
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from campaigns.campaign import Campaign
from campaigns.chaos import transports, workers
from campaigns.fuzz import fuzz
from campaigns.fuzz.attackers import replay
from campaigns.journal import Journal
from campaigns.soak import month, rolling
from campaigns.soak.account import Extent


def _chaos(
    kind: type[workers.WorkerChaos | transports.TransportChaos],
    arguments: argparse.Namespace,
    directory: Path,
) -> Campaign:
    return kind(
        arguments.seed,
        arguments.minutes * 60,
        directory=directory,
        transport=arguments.transport,
        every=arguments.every,
        rate=arguments.rate,
    )


def _month(arguments: argparse.Namespace, directory: Path) -> Campaign:
    extent = Extent(
        arguments.days,
        generations=7,
        programs=96,
        households=2,
        pairs=12,
        most_memory=1.1,
        resume_seconds=15.0,
    )
    return month.Month(arguments.seed, extent, directory=directory)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="campaigns", description=__doc__)
    kinds = parser.add_subparsers(required=True)

    def add(
        name: str,
        target: str,
        about: str | None,
        build: Callable[[argparse.Namespace, Path], Campaign],
        seed: int | None = None,
    ) -> argparse.ArgumentParser:
        each = kinds.add_parser(
            name,
            prog=f"make {target}",
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog="The same seed gives the same plan. The effect of an action also depends on timing.",
        )
        each.set_defaults(build=build, again=f"make {target}", replay=None)
        default = "another one each time" if seed is None else seed
        each.add_argument("--seed", type=int, default=seed, help=f"seed of the plan (default: {default})")
        each.add_argument("--plan", action="store_true", help="print the plan, and start nothing")
        return each

    of_workers, of_transports = (
        partial(_chaos, kind) for kind in (workers.WorkerChaos, transports.TransportChaos)
    )
    for each, transport in (
        (add("chaos", "chaos", workers.__doc__, of_workers), "grpc"),
        (add("transport", "chaos-transport", transports.__doc__, of_transports), "zmq"),
    ):
        each.add_argument("--transport", default=transport, help=f"local, grpc or zmq (default: {transport})")
        each.add_argument("--minutes", type=float, default=1.0, help="length of the run (default: 1)")
        each.add_argument("--every", type=float, default=1.0, help="seconds between faults (default: 1)")
        each.add_argument(
            "--rate", type=float, default=2000.0, help="messages per second of each sender (default: 2000)"
        )
    each = add(
        "fuzz",
        "fuzz",
        fuzz.__doc__,
        lambda given, at: fuzz.Fuzz(given.seed, given.minutes * 60, directory=at),
    )
    each.add_argument("--minutes", type=float, default=3.0, help="length of the run (default: 3)")
    each.add_argument(
        "--replay", metavar="LEVEL/THREAD/NUMBER", help="repeat one conversation of the seed only"
    )
    each = add("month", "soak", month.__doc__, _month, seed=7)
    each.add_argument("--days", type=int, default=30, metavar="N", help="days, 2 or more (default: 30)")
    each = add(
        "rolling",
        "soak PART=rolling",
        rolling.__doc__,
        lambda given, at: rolling.RollingRestarts(given.restarts, given.drain_seconds, directory=at),
    )
    each.add_argument("--restarts", type=int, default=100, metavar="N", help="restarts (default: 100)")
    each.add_argument(
        "--drain-seconds", type=float, default=10.0, metavar="S", help="the workers' limit (default: 10)"
    )
    return parser


def _replay(seed: int, place: str, directory: Path) -> int:
    """Repeat one conversation, and print it with its answer and the worker's log."""
    with ExitStack() as stack:
        journal = Journal(directory / "run.jsonl")
        stack.callback(journal.close)
        worker = fuzz.target(directory, journal, stack)
        conversation, answer = replay(seed, place, worker.endpoint.address)
        print(f"{conversation}\n{answer}")
        worker.stop()
        print(worker.log)
    shutil.rmtree(directory)
    return 0


def main() -> int:
    """Run the campaign of the command line, and print its report."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.replay and arguments.seed is None:
        parser.error("--replay needs the --seed that the conversation belongs to")
    words = sys.argv[2:]
    if arguments.seed is None:
        arguments.seed = time.time_ns() % 1_000_000
        words.append(f"--seed={arguments.seed}")
    if arguments.plan:
        for action in arguments.build(arguments, Path()).plan():
            print(f"{action.at:7.1f} s  {action}")
        return 0
    directory = Path(tempfile.mkdtemp(prefix="tuplewire-campaign-"))
    if arguments.replay:
        return _replay(arguments.seed, arguments.replay, directory)
    campaign: Campaign = arguments.build(arguments, directory)
    print(f"seed {arguments.seed}; journals and logs in {directory}", flush=True)
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
