"""The checker of plain English behind `make lint`."""
