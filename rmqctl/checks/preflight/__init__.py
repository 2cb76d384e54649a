"""Prediction of what a broker's startup would do to a store.

It covers loading, recovery, queues, the index, and the messages it would lose.
"""
