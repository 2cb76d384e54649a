"""Consume queues and index rebuilt from the log, and the resulting changes to a store."""
