"""Consume queues (plain, batch and compacted), and the rows that readers get instead of their
entries.
"""
