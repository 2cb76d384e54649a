"""The local store: messages, consume queues, index and its small files.

One module per on-disk format, and their common rules for texts and numbers.
"""
