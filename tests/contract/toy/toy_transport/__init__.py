"""A transport of somebody else's: plain TCP, Python's pickle, and the session of the package tuplewire.

It shows what a transport has to do itself: carry frames one way and acknowledgements the other, and connect
again. Numbers, credit, retention, overflow and the ledger are the session's.
"""
