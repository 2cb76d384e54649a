"""Tiered storage: reads, verifies, writes and recovers what a broker moves out of its store."""
