"""Reading a tier for what is there, damage skipped: messages by queue offset, time and key,
selections, figures, and the list of its queues, segments and index files.
"""
