"""Offsets of consumer groups set anew: reset, copied from another group, or imported."""
