"""The blocks of pages, run as a reader would paste them into a shell and Python, and the examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from helpers.ports import free_port
from helpers.tools import ROOT, ran

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ADDRESS = "127.0.0.1:6700"
_PREFIX = os.environ.get("PAGES_PREFIX", sys.prefix)
"""The environment of the reader; `make release` sets it to one with the wheel."""
_END = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"


@dataclass(frozen=True, slots=True)
class Pasted:
    """Pages that a test pastes one after the other, and their expected output."""

    pages: tuple[str, ...]
    prints: tuple[str, ...] = ()
    logs: tuple[str, ...] = field(default=(), kw_only=True)
    """Patterns of the output on standard error."""


PASTED = (
    Pasted(("clients/README.md",)),
    Pasted(("docs/index.md",), ("42 b'hello'",)),
    Pasted(
        ("docs/tutorial/first-message.md",),
        ("42 b'hello'", "second: .*important", "from a shell", r'"headers": \[\["lang", "en"\]\]'),
    ),
    Pasted(("docs/tutorial/first-topology.md",), ("'to': 200", "'that': 100")),
    Pasted(("docs/how-to/topology.md",)),
    Pasted(
        ("docs/how-to/reject.md",),
        (r"booked 12 \(\)", r"42\s+7\s+3\s+6\s+invalid literal", r"reason   invalid literal"),
    ),
    Pasted(("docs/how-to/receive.md",), ("1 b'to worker a'", "7 b'to worker b'", "7 b'after the move'")),
    Pasted(
        ("docs/how-to/request-and-reply.md",),
        (
            "b'HELLO'",
            r"\[b'TO', b'BE'\]",
            "task 42 has answered with an error: UnicodeDecodeError",
            r"no answer from task 43 within 3 s: no consumer for \d s, 1 unread at local",
        ),
    ),
    Pasted(("docs/how-to/teams.md",), (r"\('ready', \[3\.0, 6\.0, 9\.0, 12\.0\], 3\)",)),
    Pasted(("docs/how-to/asyncio.md",), ("received 1000",)),
    Pasted(("docs/how-to/from-storm.md",), ("'to': 200", "'not': 100")),
    Pasted(("docs/how-to/secure.md",)),
    Pasted(("docs/how-to/trace.md",), (r"send 42 (\w{32}) [^\0]*process 42 \1",)),
    Pasted(("docs/how-to/transport.md",)),
    Pasted(("docs/reference/api/client.md",), ("42 b'a key' b'one'", "42 None b'three'")),
    Pasted(("docs/reference/api/topology.md",), (r"\[\('BE',\), \('TO',\)\]",)),
    Pasted(("docs/reference/api/workers.md",), ("60 b'to the second worker'",)),
    Pasted(("docs/how-to/try-faults.md",), (r"(?m)^2$",)),
)
PASTED_ON_SPARK = (
    Pasted(
        ("README.md",),
        (r"\|\s*4\|\s*0\.4\|", r"\[b'one message', b'many', b'at once'\]", r"(?m)^from a shell$"),
        logs=(r"worker\.drained .*accepted 4 = acknowledged 4 ",),
    ),
    Pasted(
        ("docs/tutorial/train-with-a-team.md",),
        (r"(?m)^0 +1\.0 +1\.0 +\d+$", r"(?m)^1 +6\.0 +1\.0 +\d+$", r"(?m)^2 +1\.0 +6\.0 +\d+$"),
    ),
)
PASTED_TOGETHER = Pasted(
    tuple(page for each in reversed(PASTED_ON_SPARK) for page in each.pages),
    tuple(pattern for each in PASTED_ON_SPARK for pattern in each.prints),
    logs=tuple(pattern for each in PASTED_ON_SPARK for pattern in each.logs),
)
"""The same in one session of Spark: the second page begins with a Python block, as the first one ends."""
PASTED_ONCE = Pasted(
    ("docs/tutorial/first-query.md", "docs/how-to/spark.md"),
    (
        *(rf"\|\s*{word}\|" for word in ("to", "be", "or", "not")),
        r"\|\s*TO\|",  # in the last table of the first query
        r"\|\s*be\|\s*2\|",  # the topology's counts
        r"\|9\s*\|\{.*\}\|\d+\s*\|",  # clicks on page 9, by window
    ),
)
"""Pages that take minutes on Spark, and are not pasted again."""
ELSEWHERE = {"docs/reference/wire.md": "tests/deploy/test_clients_page.py"}
"""Pages with blocks that need further programs, and the tests that run them."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and text of the blocks that a reader pastes; other blocks are fragments."""
    return _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def paste(
    pages: Iterable[str], folder: Path, seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Paste the blocks of pages into one shell; consecutive Python blocks share one Python process.

    The folder contains the reader's environment as `.venv`, and replaces /tmp. The worker gets a free
    address. The shell exits at the first block that fails.
    """
    address = f"127.0.0.1:{free_port()}"
    at_address = {
        "TUPLEWIRE_LISTEN": address,
        "TUPLEWIRE_ADDRESS": address,
        "TUPLEWIRE_LISTEN_ADMIN": "127.0.0.1:0",
        "TUPLEWIRE_DRAIN_SECONDS": "1",  # no consumer takes the rest
    }
    (folder / ".venv").symlink_to(_PREFIX)
    script = ["set -e", _END, "pip() { :; }  # it is installed"]
    program: list[str] = []

    def run_program() -> None:
        if program:
            name = f"pasted-{len(script)}.py"
            (folder / name).write_text("\n".join(program), encoding="utf-8")
            script.append(f"python {name}")
            program.clear()

    pasted = [block for page in pages for block in blocks(page)]
    for language, text in pasted:
        there = text.replace(_ADDRESS, address).replace("/tmp/", f"{folder}/")  # noqa: S108 - the pages' own
        if language == "sh":
            run_program()
            script.append(there)
        else:
            program.append(there)
    run_program()
    return ran(
        "bash",
        "-c",
        "\n".join(script),
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{_PREFIX}/bin:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            **(at_address if any("tuplewire worker" in text for _, text in pasted) else {}),
            **(environment or {}),
        },
        seconds=seconds,
    )


def check(pasted: Pasted, ran: subprocess.CompletedProcess[str]) -> None:
    """Assert that all blocks ran and printed the expected output."""
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr
    for pattern in pasted.prints:
        assert re.search(pattern, ran.stdout), f"{pattern} is not in:\n{ran.stdout}\n{ran.stderr}"
    for pattern in pasted.logs:
        assert re.search(pattern, ran.stderr), f"{pattern} is not in:\n{ran.stderr}"


EXAMPLES = ROOT / "docs" / "examples"
PRINTS = {
    "ask_and_answer.py": ["3 squared is 9", "5 squared is 25", "8 squared is 64"],
    "enrich_orders.py": [r"\|\s*0\|\s*49500\|\s*100\|", r"\|\s*9\|\s*50400\|\s*100\|"],
    "exchange_parameters.py": [
        rf"\|\s*{task}\|\s*(3\.0|2\.99)\d*\|\s*(2\.0|1\.99)\d*\|" for task in (1, 2, 3, 4)
    ],
    "fan_in.py": ["node-1: 500 readings", "node-2: 500 readings", "python: 500 readings"],
    "feedback_loop.py": [r"2[01]\.\d degrees after \d+ rounds", "switched off"],
    "rolling_top_words.py": [r"(?m)^storm \d+, spark \d+, tuple \d+$"],
}
"""Patterns of the output, by the name of the file."""


def on_spark(name: str) -> bool:
    """Return True if an example starts Spark."""
    return "import SparkSession" in (EXAMPLES / name).read_text(encoding="utf-8")
