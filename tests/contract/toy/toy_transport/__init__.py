"""A third-party transport: plain TCP by asyncio.

It shows the duties of a transport: carry byte strings both ways, in order, and report the reason for the end
of a stream. Tuplewire adds sessions, credit, acknowledgements, reconnecting and the ledger.
"""
