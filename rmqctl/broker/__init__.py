"""How brokers of each version behave: startup on a store, dispatch to queues, answers to requests.

All code that imitates a broker uses this package, so that all commands agree.
"""
