"""The wire format in Python: generated code, the frame codec, and conversions of session values."""
