"""A shell completes the command: real shells, as a person would set them up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.tools import require_tool

_PRESS_TAB = """
eval "$(tuplewire completion bash)"
COMP_WORDS=(tuplewire {words}); COMP_CWORD={last}; COMP_LINE="tuplewire {words}"; COMP_POINT=${{#COMP_LINE}}
COMP_TYPE=9 _python_argcomplete tuplewire
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sta", {"status"}),
        ("drain --dead", {"--deadline"}),
        ("run wordc", {"wordcount"}),
        ("completion f", {"fish"}),
    ],
)
def test_bash_completes_commands_flags_and_jobs(words: str, found: set[str]) -> None:
    """What bash offers after a Tab is what the command takes."""
    script = _PRESS_TAB.format(words=words, last=len(words.split()))
    programs = Path(sys.executable).parent
    ran = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        check=False,
        timeout=60,
    )
    assert set(ran.stdout.split()) == found, ran.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_what_is_printed(shell: str) -> None:
    """The code for each shell is valid there."""
    printed = subprocess.run(
        [sys.executable, "-m", "tuplewire", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "tuplewire" in printed
    program = require_tool(shell, f"the Debian package {shell}")
    subprocess.run([program, "-n"], input=printed, text=True, check=True, timeout=60)
