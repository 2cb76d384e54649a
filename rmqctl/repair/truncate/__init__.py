"""Truncation of a log, and of everything derived from it."""
