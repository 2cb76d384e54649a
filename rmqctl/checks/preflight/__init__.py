"""Prediction of what a broker's start would do to a store.

Load, recovery, queues, index, and the messages it would lose.
"""
