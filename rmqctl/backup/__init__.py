"""Backups: a consistent copy of a store that may be in use, grown run by run, and restored."""
