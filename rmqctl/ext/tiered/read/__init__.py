"""Read a tier and skip damage: find messages by queue offset, time or key, select and count
messages, and list queues, segments and index files.
"""
