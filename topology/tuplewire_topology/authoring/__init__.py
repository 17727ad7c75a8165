"""The classes that programs use to write a topology."""
