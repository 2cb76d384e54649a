"""Truncate a log and all structures derived from it."""
