"""Groupings: which task gets a tuple or a row."""
