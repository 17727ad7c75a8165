"""Run the benches of two commits in turns, and print how this tree compares with the other one.

Both use the packages of this interpreter; each has its own code and its own bench. A ratio above 1 is faster
than the base. No timing affects the exit status: 1 means that a bench did not run.

Example: python tests/tools/bench/compare.py c8f4254 --only hop --pairs 5
Without a base, as in CI: compared with the commit ten before this one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent import KEEP_BUFFERS, parser_of
from report import amount, progress

ROOT = Path(__file__).parents[3]
GROUPS = ("sends", "hop", "hop-zmq", "hop-local", "chain", "chain-zmq", "stopped", "senders", "latency")
NO_SUCH_ROW = 2
"""Exit status of a bench without the requested row, as is possible for an old commit."""
BEFORE = 10
"""The distance of the default base, in commits: the effect of a single commit is below the noise."""
_TREES = ("clients", "service", "topology", "demos")

Key = tuple[str, str]
"""The row, and for latencies the percentile."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out a commit next to this one, for the block."""
    with tempfile.TemporaryDirectory(prefix="tuplewire-base-") as directory:
        tree = Path(directory) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def python_path(tree: Path) -> str:
    """Return the PYTHONPATH for the code of a commit."""
    return os.pathsep.join(str(tree / each) for each in _TREES)


def _run(tree: Path, only: str, seconds: float) -> dict[Key, dict[str, Any]]:
    environment = {**KEEP_BUFFERS, **os.environ, "PYTHONPATH": python_path(tree)}
    (script,) = tree.glob("tests/**/bench/run.py")  # old commits may have it in another folder
    command = [sys.executable, str(script), "--json", f"--only={only}", f"--seconds={seconds}"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == NO_SUCH_ROW:
        return {}
    if done.returncode:
        raise SystemExit(f"bench of {tree.name}: {done.stderr[-2000:]}")
    lines = json.loads(done.stdout)["lines"]
    return {(line["row"], line["title"].partition(":")[2].partition("(")[0].strip()): line for line in lines}


def _ratio(base: dict[str, Any], ours: dict[str, Any], what: str) -> float:
    """Return the speed of this tree relative to the base, or for costs the inverse ratio."""
    faster = what == "value" and base["unit"] == "messages/s"
    ratio: float = ours[what] / base[what] if faster else base[what] / ours[what]
    return ratio


def compare(base: Path, groups: Sequence[str], pairs: int, seconds: float) -> Iterator[str]:
    """Yield a line for each row, as soon as its pairs are measured."""
    yield f"{'row':24} {'base':>14} {'here':>14} {'ratio':>6} {'(lowest - highest)':>20} {'CPU':>6}"
    for group in groups:
        found: defaultdict[Key, list[tuple[dict[str, Any], dict[str, Any]]]] = defaultdict(list)
        for number in range(pairs):
            progress(f"{group}: pair {number + 1} of {pairs}")
            trees = [base, ROOT] if number % 2 == 0 else [ROOT, base]
            runs = {tree: _run(tree, group, seconds) for tree in trees}
            for key in runs[base].keys() & runs[ROOT].keys():
                found[key].append((runs[base][key], runs[ROOT][key]))
        progress("")
        for (row, part), lines in sorted(found.items()):
            ratios = [_ratio(*pair, "value") for pair in lines]
            cpu = [_ratio(*pair, "cpu_microseconds") for pair in lines if pair[0]["cpu_microseconds"]]
            amounts = [statistics.median(pair[side]["value"] for pair in lines) for side in (0, 1)]
            cells = [
                f"{row} {part}".strip().ljust(24),
                *(amount(each, lines[0][0]["unit"]).rjust(14) for each in amounts),
                f"{statistics.median(ratios):6.2f}",
                f"({min(ratios):.2f} - {max(ratios):.2f})".rjust(20),
                f"{statistics.median(cpu):6.2f}" if cpu else "",
            ]
            yield " ".join(cells).rstrip()


def commit_before() -> str:
    """Return the commit BEFORE this one, or the oldest in this clone."""
    git = ["git", "-C", str(ROOT), "rev-list", "--first-parent", f"--max-count={BEFORE + 1}", "HEAD"]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.split()[-1]


def main() -> int:
    """Run the measurements of the command line."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "base", nargs="?", help=f"the commit to compare with; without it that of {BEFORE} commits before"
    )
    parser.add_argument(
        "--only", action="append", help=f"these rows alone: {', '.join(GROUPS)}, hop/1000 ..."
    )
    parser.add_argument("--pairs", type=int, default=3, help="runs of each commit (default: 3)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of each run, less its start (default: 10)"
    )
    given = parser.parse_args()
    base = given.base or commit_before()
    print(f"beside {base[:12]}; above 1 is faster than there, or takes less processor time", flush=True)
    with checked_out(base) as tree:
        for line in compare(tree, given.only or GROUPS, given.pairs, given.seconds):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
