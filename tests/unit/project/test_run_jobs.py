"""`tuplewire run`: the jobs that installed packages declare."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from helpers.tools import ran

from tuplewire_service.command.cli import main

ROOT = Path(__file__).parents[3]
JOB = """
def add(jobs, name):
    jobs.add_parser(name, help="of a package of one's own").set_defaults(handler=lambda arguments: 7)
"""


def install(directory: Path, entry_point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that declares a job."""
    (directory / "a_job_of_mine.py").write_text(JOB, encoding="utf-8")
    about = directory / "a_job_of_mine-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: a-job-of-mine\nVersion: 1\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[tuplewire.run]\n{entry_point}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(directory)


def test_a_package_adds_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a package declares runs by its name."""
    install(tmp_path, "mine = a_job_of_mine:add", monkeypatch)
    assert main(["run", "mine"]) == 7


def test_a_job_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the entry point and the reason."""
    install(tmp_path, "mine = a_job_of_mine:missing", monkeypatch)
    assert main(["run", "flights"]) == 64
    assert "cannot load the job 'mine' from a_job_of_mine:missing" in capsys.readouterr().err


def test_without_any_job() -> None:
    """If no package declares a job, the error names the package to install."""
    program = "import sys; from tuplewire_service.command.cli import main; sys.exit(main(['run']))"
    folders = os.pathsep.join(str(ROOT / folder) for folder in ("clients", "service", "topology"))
    ended = ran(sys.executable, "-S", "-c", program, env={**os.environ, "PYTHONPATH": folders})
    assert (ended.returncode, ended.stderr.count("\n")) == (64, 1)
    assert "there is no job to run" in ended.stderr
    assert "tuplewire[demo]" in ended.stderr
