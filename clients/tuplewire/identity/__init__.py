"""What programs show of themselves, and the names in certificates and token files."""
