"""The README: what it tells to paste works as it stands, in order, in a fresh directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from helpers.packaging import ROOT
from helpers.ports import free_port

_BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
_SECONDS = 60.0


def blocks(heading: str) -> list[tuple[str, str]]:
    """Return what is to be pasted under a heading: the language of each block, and its text."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return _BLOCK.findall(section)


def test_ten_lines(tmp_path: Path) -> None:
    """A worker, a program that sends and receives, the worker's status and its end."""
    address = f"127.0.0.1:{free_port()}"
    start, program, shell, end = blocks("Ten lines")
    assert [each[0] for each in (start, program, shell, end)] == ["sh", "python", "sh", "sh"]
    activate, _, begin = start[1].partition("\n")
    assert activate == ". .venv/bin/activate"
    (tmp_path / "program.py").write_text(program[1].replace("127.0.0.1:6700", address), encoding="utf-8")
    end_worker = "trap 'kill $! 2>/dev/null || true' EXIT"
    script = f"set -e\n{end_worker}\n{begin}\npython program.py\n{shell[1]}\n{end[1]}\nwait $!"
    programs = Path(sys.executable).parent
    ran = subprocess.run(
        ["bash", "-c", script.replace("127.0.0.1:6700", address)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TUPLEWIRE_LISTEN": address,
            "TUPLEWIRE_ADDRESS": address,
            "TUPLEWIRE_ADMIN": "127.0.0.1:0",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    assert "[b'one message', b'many', b'at once']" in ran.stdout
    assert re.search(r"accepted 4\b.*acknowledged 4\b", ran.stdout), ran.stdout
    assert "from a shell" in ran.stdout
    assert "worker.drained" in ran.stderr
    assert "Traceback" not in ran.stderr
