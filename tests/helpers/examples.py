"""The programs of docs/examples, and the output of each."""

from __future__ import annotations

from helpers.packaging import ROOT

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
