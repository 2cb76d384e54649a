"""Rebuild consume queues and index from the log, and plan the resulting changes to a store."""
