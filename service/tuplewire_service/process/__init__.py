"""The worker as a process: its configuration, its life and its exit code."""
