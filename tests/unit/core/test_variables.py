"""Unknown TUPLEWIRE_* variables: programs and workers follow the same rule."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tuplewire.errors import ConfigError
from tuplewire.settings.settings import settings_of
from tuplewire.variables import OF_PROGRAMS, refuse_misspelled
from tuplewire_service.config.config_sources import load
from tuplewire_service.config.worker_config import WorkerConfig

OTHERS = ("TUPLEWIRE_VERSION", "TUPLEWIRE_IMAGE_TAG", "TUPLEWIRE_HOME", "TUPLEWIRE_")


def test_variables_of_others_are_ignored() -> None:
    """Variables of an image are ignored."""
    environment = dict.fromkeys(OTHERS, "1")
    refuse_misspelled(environment, OF_PROGRAMS)
    load({}, environment)


def test_variables_of_workers_are_ignored_by_programs() -> None:
    """A program ignores a worker's variables, because both may share an environment."""
    refuse_misspelled({each.variable: "1" for each in settings_of(WorkerConfig).values()}, OF_PROGRAMS)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("TUPLEWIRE_ADRESS", "TUPLEWIRE_ADDRESS"),
        ("TUPLEWIRE_TOPLOGY", "TUPLEWIRE_TOPOLOGY"),
        ("TUPLEWIRE_TLS_CERTIFCATE", "TUPLEWIRE_TLS_CERTIFICATE"),
        ("TUPLEWIRE_TOKENFILE", "TUPLEWIRE_TOKEN_FILE"),
    ],
)
def test_misspelled_variables_are_refused(wrong: str, meant: str) -> None:
    """Misspelled variables are refused: without its CA, a program would connect in plaintext."""
    for read in (lambda: load({}, {wrong: "x"}), lambda: refuse_misspelled({wrong: "x"}, OF_PROGRAMS)):
        with pytest.raises(ConfigError, match=f"{wrong}; did you mean {meant}"):
            read()
    program = "import tuplewire; tuplewire.Client('127.0.0.1:1')"
    done = subprocess.run(
        [sys.executable, "-c", program], env={wrong: "x"}, capture_output=True, text=True, check=False
    )
    assert f"did you mean {meant}?" in done.stderr
