"""The local store: messages, consume queues, index and its small files.

One module per on-disk format, plus the rules for texts and numbers that formats share.
"""
