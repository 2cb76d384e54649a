"""The local store: messages, consumequeues, index and the small files beside them.

One module per on-disk format, and the rules of texts and numbers that they share.
"""
