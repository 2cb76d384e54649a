"""Read a tier and skip damage.

Find messages by queue offset, time or key; select and count messages; list queues, segments and
index files.
"""
