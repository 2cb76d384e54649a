"""Changing offsets of consumer groups: reset, copied from another group, or imported."""
