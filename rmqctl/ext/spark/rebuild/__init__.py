"""Rebuild consume queues and index of many stores on any pool, and publish them as repairs are."""
