"""Credentials of programs, names in certificates, and token files."""
