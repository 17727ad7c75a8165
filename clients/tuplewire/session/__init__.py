"""The session protocol as pure state machines: events and time in, actions out.

Nothing here does I/O, starts a thread or reads a clock.
"""
