"""Comparison of consume queues with the log in both directions; extension and batch queues."""
