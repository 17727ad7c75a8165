"""The admin port of a worker: metrics and probes."""
