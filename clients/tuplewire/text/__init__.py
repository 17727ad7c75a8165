"""Escaped text for terminals, logs and notebooks, and log events."""
