"""Commands that show the contents of a store."""
