"""Hostile input by the thousand: seeded, so that every single conversation can be had again."""
