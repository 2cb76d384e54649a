"""Commands that write to a store."""
