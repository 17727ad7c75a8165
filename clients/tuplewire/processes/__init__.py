"""Starts and stops processes on this machine. Source: Storm's supervisor."""
