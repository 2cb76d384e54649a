"""Comparison of consume queues with the log in both directions, and checks of consume queue
extensions and batch consume queues.
"""
