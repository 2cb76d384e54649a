"""Tiered storage: read, verify, feed and heal what a broker moved out of its store."""
