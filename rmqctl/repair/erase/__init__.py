"""Erase messages with all their copies; delete topics and groups."""
