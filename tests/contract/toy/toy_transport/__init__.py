"""A transport of somebody else's: plain TCP by asyncio.

It shows what a transport has to do itself: carry byte strings both ways, in order, and tell why a stream has
ended. Sessions, credit, acknowledgements, reconnecting and the ledger are Tuplewire's.
"""
