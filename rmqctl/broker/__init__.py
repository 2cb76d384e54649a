"""The behaviour of brokers by version: startup on a store, dispatch to queues, answers to requests.

All code that imitates a broker uses this package, so that all commands agree.
"""
