"""Collective calls among running tasks: sums, barriers, broadcasts and messages by rank."""
