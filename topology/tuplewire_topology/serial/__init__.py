"""Tuples to bytes and back."""
