"""Writes the operator's PrometheusRule, which holds rules.yml as it is, to standard output."""

from __future__ import annotations

import textwrap
from pathlib import Path

RULES = Path(__file__).with_name("rules.yml")

_HEAD = """\
# Made of deploy/prometheus/rules.yml by `make monitoring`; change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tuplewire
  labels:
    app.kubernetes.io/name: tuplewire
spec:
"""


def prometheus_rule() -> str:
    """Return the manifest in YAML."""
    return _HEAD + textwrap.indent(RULES.read_text(encoding="utf-8"), "  ")


if __name__ == "__main__":
    print(prometheus_rule(), end="")
