"""The wire contract in Python: generated code and the frame codec."""
