"""The worker as a process: its start, its parts, its shutdown and its exit code."""
