"""Rebuild consume queues and index of stores on any pool, and publish them like other repairs."""
