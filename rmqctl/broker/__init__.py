"""A broker's own rules: how each version starts on a store, fills its queues and answers.

All code that follows a broker uses these rules, so that all commands give the same answers.
"""
