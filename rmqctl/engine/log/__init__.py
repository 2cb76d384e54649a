"""Append to the commitlog: its files, the roll to the next one, and flushing to disk."""
