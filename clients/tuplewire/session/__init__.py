"""The session protocol as pure state machines: callers pass events and times, and get actions.

No module here does I/O or starts a thread. Only SendingPressure and exemplars (durations.py) read a clock.
"""
