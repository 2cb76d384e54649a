"""Read a tier, skipping damage: messages by queue offset, time and key, selections, counts, and
lists of queues, segments and index files.
"""
