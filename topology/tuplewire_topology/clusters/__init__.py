"""Clusters: topologies in this process, or in one process per worker on this machine."""
