"""Shipped for tests of transports and topologies."""
