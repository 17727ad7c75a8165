"""The command `tuplewire`."""
