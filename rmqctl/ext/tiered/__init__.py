"""Tiered storage: read, verify, write and recover the files that a broker keeps in a tier."""
