"""Erasing of messages with all their copies, and of topics and groups."""
