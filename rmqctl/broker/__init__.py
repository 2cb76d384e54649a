"""The rules of brokers, by version: startup on a store, dispatch to queues, answers to requests.

All code that imitates a broker uses these rules, so that all commands agree.
"""
