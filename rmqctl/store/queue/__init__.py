"""Consume queues (plain, batch and compacted), and the rows that readers build from their
entries.
"""
