"""Backups: copy a store that may be in use, add to the copy with each run, and restore it."""
