"""Carve messages out of any bytes, and write them to a new store."""
