"""Spark's settings for executors with a worker in the same pod."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tuplewire.errors import ConfigError
from tuplewire.spark.kubernetes import settings

DEFAULTS = Path(__file__).parents[3] / "deploy" / "spark-defaults.conf"
GRACE = "spark.kubernetes.executor.terminationGracePeriodSeconds"


def test_the_file_says_the_same() -> None:
    """spark-defaults.conf has exactly the settings that the function returns."""
    lines = DEFAULTS.read_text(encoding="utf-8").splitlines()
    written = dict(line.split() for line in lines if line.startswith("spark."))
    assert written == settings("executor-template.yaml", driver_template="driver-template.yaml")


def test_the_grace_period_has_room_for_all() -> None:
    """The grace period is the sum of the executor's, drain and close times, in whole seconds."""
    given = settings("t.yaml", drain_seconds=60.5, executor_exit_seconds=10)
    assert given[GRACE] == "76s"
    assert given["spark.executor.decommission.forceKillTimeout"] == "10s"


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan])
def test_wrong_times(wrong: float) -> None:
    """The error names the invalid time."""
    with pytest.raises(ConfigError, match="drain_seconds must be a number of more than 0"):
        settings("t.yaml", drain_seconds=wrong)
    with pytest.raises(ConfigError, match="executor_exit_seconds must be a number of more than 0"):
        settings("t.yaml", executor_exit_seconds=wrong)


def test_no_template() -> None:
    """A missing executor template is an error."""
    with pytest.raises(ConfigError, match="tuplewire-executor-template"):
        settings("")


def test_ports_of_the_policy_are_set() -> None:
    """The network policy's ports are fixed, because Spark would otherwise choose blocked ports."""
    policies = DEFAULTS.parent / "helm" / "tuplewire" / "templates" / "networkpolicies.yaml"
    ours_and_dns = {"6700", "9464", "53"}
    opened = set(re.findall(r"port: (\d+)", policies.read_text(encoding="utf-8"))) - ours_and_dns
    given = settings("t.yaml", driver_template="d.yaml")
    assert opened == {value for name, value in given.items() if name.lower().endswith("port")}
