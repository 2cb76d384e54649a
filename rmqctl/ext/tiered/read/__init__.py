"""Read a tier and skip damage: messages by queue offset, time and key, selections, counts, and the
list of its queues, segments and index files.
"""
