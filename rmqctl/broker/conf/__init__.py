"""Effective settings of a broker with a ``broker.conf``, and the store that it opens with them."""
