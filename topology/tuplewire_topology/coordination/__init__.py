"""What the processes of a topology tell each other."""
