"""The commands that show what is in a store."""
