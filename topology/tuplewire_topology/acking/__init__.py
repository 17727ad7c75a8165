"""Tracks each tuple of a spout until it and all its descendants are processed."""
