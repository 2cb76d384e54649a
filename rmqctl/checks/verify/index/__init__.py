"""Checks of the index against the keys in the log, and of the structure of each index file."""
