"""Prediction of what a broker's startup would do to a store.

The prediction covers loading, recovery, consume queues, the index, and the messages that would be
lost.
"""
