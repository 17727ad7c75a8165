"""What a topology is written with."""
