"""Carving of messages out of any bytes, and a new store of these messages."""
