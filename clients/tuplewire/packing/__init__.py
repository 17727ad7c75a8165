"""Conversion of Python values to MessagePack bytes and back."""
