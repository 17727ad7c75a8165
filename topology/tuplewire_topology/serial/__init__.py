"""Serialization of tuples."""
