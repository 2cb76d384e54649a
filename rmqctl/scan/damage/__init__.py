"""Ranges without a record: where damage ends, and which records after it belong to the log."""
