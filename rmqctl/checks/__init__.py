"""Checks of stores: `verify`, `diff` and `preflight` yield findings."""
