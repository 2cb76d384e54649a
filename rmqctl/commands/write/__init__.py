"""The commands that put something into a store."""
