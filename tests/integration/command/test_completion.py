"""A shell completes the command: real shells, set up as the command's help says, at a press of Tab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helpers import eventually
from helpers.terminals import on_terminal
from helpers.tools import require_tool

COMPLETED = {
    "sta": "status",
    "drain --dead": "--deadline",
    "run wordc": "wordcount",
    "completion f": "fish",
}
"""What is typed behind the command, and what its last word becomes."""
_PRESS_TAB = """
eval "$(tuplewire completion bash)"
COMP_WORDS=(tuplewire {words}); COMP_CWORD={last}; COMP_LINE="tuplewire {words}"; COMP_POINT=${{#COMP_LINE}}
COMP_TYPE=9 _python_argcomplete tuplewire
echo "${{COMPREPLY[@]}}"
"""
_KEEP_LINE = "keep() { print -r -- $BUFFER > $HOME/line; BUFFER= }; zle -N keep; bindkey ^X keep"


def environment(home: Path) -> dict[str, str]:
    """Return that of a person who has configured nothing, and has the command."""
    programs = Path(sys.executable).parent
    return {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "TERM": "xterm", "LANG": "C.UTF-8"}


def script(home: Path, *command: str) -> str:
    """Run a shell's script, and return what it prints."""
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100, env=environment(home)
    )
    assert ran.stderr == ""
    return ran.stdout


def test_bash(tmp_path: Path) -> None:
    """What bash offers after a Tab is what the command takes."""
    for words, found in COMPLETED.items():
        pressed = _PRESS_TAB.format(words=words, last=len(words.split()))
        assert script(tmp_path, "bash", "-c", pressed).split() == [found]


def test_fish(tmp_path: Path) -> None:
    """The same, with what each is for."""
    fish = require_tool("fish", "the Debian package fish")
    offers = "; ".join(f"complete --do-complete 'tuplewire {words}'" for words in COMPLETED)
    offered = script(tmp_path, fish, "-c", f"tuplewire completion fish | source; {offers}").splitlines()
    assert [line.partition("\t")[0] for line in offered] == list(COMPLETED.values())
    assert offered[0].partition("\t")[2].startswith("show a worker's state")


def test_zsh(tmp_path: Path) -> None:
    """The same, on a terminal, of a zsh that has nothing but this line in its file."""
    zsh = require_tool("zsh", "the Debian package zsh")
    (tmp_path / ".zshrc").write_text(f'eval "$(tuplewire completion zsh)"\n{_KEEP_LINE}\n', encoding="utf-8")
    line = tmp_path / "line"
    with on_terminal([zsh, "-i"], environment(tmp_path)) as shell:
        for words, found in COMPLETED.items():
            line.unlink(missing_ok=True)
            os.write(shell.controller, f"tuplewire {words}\t\x18".encode())
            eventually(lambda: shell.seen() and line.exists() and line.read_text(encoding="utf-8"), 60)
            typed = " ".join(["tuplewire", *words.split()[:-1], found])
            assert line.read_text(encoding="utf-8").strip() == typed
