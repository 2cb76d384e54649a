"""Consume queues, plain, batch and compacted, and the runs of entries that readers build from
them.
"""
