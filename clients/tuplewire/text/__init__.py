"""Texts that people read, and events for the log."""
