"""A broker's own rules: how each version starts on a store, fills its queues and answers.

Everything that follows a broker asks here, so that no two commands say different things of it.
"""
