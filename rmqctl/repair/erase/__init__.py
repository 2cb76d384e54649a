"""Erasing on demand: messages with all their copies, topics, groups."""
