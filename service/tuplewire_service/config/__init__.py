"""The configuration of a worker process."""
