"""Topologies in one process: executors over any transport, and the local cluster."""
