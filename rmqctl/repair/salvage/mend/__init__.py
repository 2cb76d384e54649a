"""Restore damaged records, and correct fields that no broker can have written."""
