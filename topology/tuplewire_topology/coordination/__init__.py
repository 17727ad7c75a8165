"""Coordinates the processes of a topology, and reports their state."""
