"""The effective settings of a broker with a ``broker.conf``, and the store that the broker
opens.
"""
