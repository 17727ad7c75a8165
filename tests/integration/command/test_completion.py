"""Completion with Tab in real shells, which are set up as the command's help describes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from helpers import eventually
from helpers.terminals import on_terminal
from helpers.tools import ran, require_tool

COMPLETED = {"sta": "status", "drain --dead": "--deadline", "run wordc": "wordcount", "completion f": "fish"}
"""The words typed after the command, and the completion of the last word."""
_PRESS_TAB = """
eval "$(tuplewire completion bash)"
COMP_WORDS=(tuplewire {words}); COMP_CWORD={last}; COMP_LINE="tuplewire {words}"; COMP_POINT=${{#COMP_LINE}}
COMP_TYPE=9 _python_argcomplete tuplewire
echo "${{COMPREPLY[@]}}"
"""
_KEEP_LINE = "keep() { print -r -- $BUFFER > $HOME/line; BUFFER= }; zle -N keep; bindkey ^X keep"


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user without configuration, with the command on the PATH."""
    programs = Path(sys.executable).parent
    return {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "TERM": "xterm", "LANG": "C.UTF-8"}


def script(home: Path, *command: str) -> str:
    """Run a shell script, and return its output."""
    ended = ran(*command, env=environment(home), seconds=100)
    assert ended.stderr == ""
    return ended.stdout


def test_bash(tmp_path: Path) -> None:
    """In bash, Tab completes the words of the command."""
    for words, found in COMPLETED.items():
        pressed = _PRESS_TAB.format(words=words, last=len(words.split()))
        assert script(tmp_path, "bash", "-c", pressed).split() == [found]


def test_fish(tmp_path: Path) -> None:
    """In fish, Tab completes the same words, with a description of each."""
    fish = require_tool("fish", "the Debian package fish")
    offers = "; ".join(f"complete --do-complete 'tuplewire {words}'" for words in COMPLETED)
    offered = script(tmp_path, fish, "-c", f"tuplewire completion fish | source; {offers}").splitlines()
    assert [line.partition("\t")[0] for line in offered] == list(COMPLETED.values())
    assert offered[0].partition("\t")[2].startswith("show a worker's state")


def test_zsh(tmp_path: Path) -> None:
    """In zsh on a terminal, Tab completes the same words, with only the completion's line in .zshrc."""
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
