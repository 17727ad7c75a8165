"""Groupings: the choice of the task that gets a tuple or a row."""
